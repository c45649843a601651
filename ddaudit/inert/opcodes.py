"""Opcodes that make plain values: numbers, text, containers, and the stack and memo that hold them."""

from __future__ import annotations

from typing import Any

from ddaudit.inert.machine import (
    F64,
    I32,
    LONG_MAX_BYTES,
    TABLE,
    U16,
    U32,
    U64,
    Handler,
    Machine,
    Stop,
    opcode,
)
from ddaudit.inert.nodes import Malformed, Opaque


def _constant(code: bytes, value: Any) -> None:
    def handler(m: Machine, pos: int) -> int:
        m.stack.append(value)
        return pos

    TABLE[code[0]] = handler


for _code, _value in ((b"N", None), (b"\x88", True), (b"\x89", False), (b")", ())):
    _constant(_code, _value)


# ---- numbers


@opcode(b"K")
def _binint1(m: Machine, pos: int) -> int:
    m.stack.append(m.data[pos])
    return pos + 1


@opcode(b"M")
def _binint2(m: Machine, pos: int) -> int:
    m.stack.append(U16(m.data, pos)[0])
    return pos + 2


@opcode(b"J")
def _binint(m: Machine, pos: int) -> int:
    m.stack.append(I32(m.data, pos)[0])
    return pos + 4


@opcode(b"G")
def _binfloat(m: Machine, pos: int) -> int:
    m.stack.append(F64(m.data, pos)[0])
    return pos + 8


def _long(m: Machine, pos: int, length: int) -> int:
    raw = m.take(pos, length)
    m.stack.append(int.from_bytes(raw, "little", signed=True) if length <= LONG_MAX_BYTES else Opaque("long integer"))
    return pos + length


@opcode(b"\x8a")
def _long1(m: Machine, pos: int) -> int:
    return _long(m, pos + 1, m.data[pos])


@opcode(b"\x8b")
def _long4(m: Machine, pos: int) -> int:
    return _long(m, pos + 4, I32(m.data, pos)[0])


@opcode(b"I")
def _int_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    m.stack.append({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text[:100]))
    return end


@opcode(b"L")
def _long_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    m.stack.append(int(text.rstrip(b"L")) if len(text) < 600 else Opaque("long integer"))
    return end


@opcode(b"F")
def _float_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    m.stack.append(float(text))
    return end


# ---- text and bytes


@opcode(b"\x8c")
def _short_unicode(m: Machine, pos: int) -> int:
    end = pos + 1 + m.data[pos]
    m.stack.append(str(m.take(pos + 1, end - pos - 1), "utf-8", "surrogatepass"))
    return end


def _sized(size: int, read: Any, build: Any) -> Handler:
    def handler(m: Machine, pos: int) -> int:
        length = read(m.data, pos)[0]
        m.stack.append(build(m.take(pos + size, length)))
        return int(pos + size + length)

    return handler


def _text(raw: bytes) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _latin(raw: bytes) -> str:
    """Python 2 `str`: torch's legacy files use it for ASCII keys only."""
    return str(raw, "latin-1")


def _byte(data: bytes, pos: int) -> tuple[int]:
    return (data[pos],)


for _code, _size, _read, _build in (
    (b"X", 4, U32, _text),
    (b"\x8d", 8, U64, _text),
    (b"C", 1, _byte, bytes),
    (b"B", 4, U32, bytes),
    (b"\x8e", 8, U64, bytes),
    (b"\x96", 8, U64, bytes),
    (b"U", 1, _byte, _latin),
    (b"T", 4, I32, _latin),
):
    TABLE[_code[0]] = _sized(_size, _read, _build)


@opcode(b"V")
def _unicode_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    m.stack.append(str(text, "raw-unicode-escape"))
    return end


@opcode(b"S")
def _string_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise Malformed("a STRING operand without quotes", pos)
    m.stack.append(str(text[1:-1], "unicode-escape"))
    return end


@opcode(b"\x97")
def _next_buffer(m: Machine, pos: int) -> int:
    m.stack.append(Opaque("out-of-band buffer"))
    return pos


@opcode(b"\x98")
def _readonly_buffer(m: Machine, pos: int) -> int:
    return pos


# ---- stack, memo, frames


@opcode(b"(")
def _mark(m: Machine, pos: int) -> int:
    m.room -= 1
    m.marks.append(m.stack)
    m.stack = []
    return pos


@opcode(b"0")
def _pop(m: Machine, pos: int) -> int:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()
    return pos


@opcode(b"1")
def _pop_mark(m: Machine, pos: int) -> int:
    m.pop_mark()
    return pos


@opcode(b"2")
def _dup(m: Machine, pos: int) -> int:
    m.stack.append(m.stack[-1])
    return pos


@opcode(b"\x94")
def _memoize(m: Machine, pos: int) -> int:
    if m.sparse:
        m.sparse[len(m.memo) + len(m.sparse)] = m.stack[-1]
    elif m.kept is None:
        m.memo.append(m.stack[-1])
    else:
        m.memo.append(m.memorable(len(m.memo)))
    return pos


def _put(m: Machine, index: int) -> None:
    count = len(m.memo)
    if index == count and not m.sparse:
        m.memo.append(m.memorable(index))
    elif 0 <= index < count:
        m.memo[index] = m.stack[-1]
    else:
        m.room -= 1
        m.sparse[index] = m.stack[-1]


def _get(m: Machine, index: int, pos: int) -> None:
    if 0 <= index < len(m.memo):
        m.stack.append(m.memo[index])
    elif index in m.sparse:
        m.stack.append(m.sparse[index])
    else:
        raise Malformed(f"memo entry {index} was never written", pos)


@opcode(b"q")
def _binput(m: Machine, pos: int) -> int:
    _put(m, m.data[pos])
    return pos + 1


@opcode(b"r")
def _long_binput(m: Machine, pos: int) -> int:
    _put(m, U32(m.data, pos)[0])
    return pos + 4


@opcode(b"p")
def _put_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    _put(m, int(text[:20]))
    return end


@opcode(b"h")
def _binget(m: Machine, pos: int) -> int:
    index, memo = m.data[pos], m.memo
    if index < len(memo):
        m.stack.append(memo[index])
    else:
        _get(m, index, pos)
    return pos + 1


@opcode(b"j")
def _long_binget(m: Machine, pos: int) -> int:
    index, memo = U32(m.data, pos)[0], m.memo
    if index < len(memo):
        m.stack.append(memo[index])
    else:
        _get(m, index, pos)
    return pos + 4


@opcode(b"g")
def _get_text(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    _get(m, int(text[:20]), pos)
    return end


@opcode(b"\x80")
def _proto(m: Machine, pos: int) -> int:
    if m.data[pos] > 5:
        raise Malformed(f"pickle protocol {m.data[pos]} is unknown", pos)
    return pos + 1


@opcode(b"\x95")
def _frame(m: Machine, pos: int) -> int:
    length = U64(m.data, pos)[0]
    if length > len(m.data) - pos - 8:
        raise Malformed(f"a frame of {length:,} bytes goes beyond the end", pos)
    return pos + 8


@opcode(b".")
def _stop(m: Machine, pos: int) -> int:
    raise Stop(pos)
