"""Opcodes that a real unpickler executes code for. Here they make nodes: names, calls, object states."""

from __future__ import annotations

from typing import Any

from ddaudit.inert.machine import I32, U16, Machine, opcode
from ddaudit.inert.nodes import Call, Global, Malformed, Persistent


@opcode(b"c")
def _global(m: Machine, pos: int) -> int:
    module, behind = m.line(pos)
    name, end = m.line(behind)
    m.stack.append(m.see(str(module, "utf-8"), str(name, "utf-8"), pos))
    return end


@opcode(b"\x93")
def _stack_global(m: Machine, pos: int) -> int:
    name, module = m.stack.pop(), m.stack.pop()
    m.stack.append(m.see(module, name, pos))
    return pos


@opcode(b"R")
def _reduce(m: Machine, pos: int) -> int:
    args = m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args)
    return pos


@opcode(b"\x81")
def _newobj(m: Machine, pos: int) -> int:
    args = m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args)
    return pos


@opcode(b"\x92")
def _newobj_ex(m: Machine, pos: int) -> int:
    kwargs, args = m.stack.pop(), m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args, kwargs)
    return pos


@opcode(b"i")
def _inst(m: Machine, pos: int) -> int:
    module, behind = m.line(pos)
    name, end = m.line(behind)
    args = m.pop_mark()
    m.stack.append(m.call(m.see(str(module, "utf-8"), str(name, "utf-8"), pos), tuple(args)))
    return end


@opcode(b"o")
def _obj(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.stack.append(m.call(items[0], tuple(items[1:])))
    return pos


@opcode(b"b")
def _build(m: Machine, pos: int) -> int:
    state = m.stack.pop()
    target = m.stack[-1]
    kind = type(target)
    if kind is Call:
        target.state = state
    elif hasattr(kind, "inert_build"):
        target.inert_build(state)
    elif isinstance(target, dict):
        pass  # attributes of an OrderedDict, such as a state dict's _metadata
    else:
        m.result.notes.append(f"state is set on {kind.__name__} at byte {pos:,}")
    return pos


def _extension(m: Machine, pos: int, size: int, code: int) -> int:
    """An extension code names an object through a registry outside the file: nobody can say which."""
    m.see("copyreg", f"extension_{code}", pos)
    m.stack.append(Call(Global("copyreg", "extension"), (code,)))
    return pos + size


@opcode(b"\x82")
def _ext1(m: Machine, pos: int) -> int:
    return _extension(m, pos, 1, m.data[pos])


@opcode(b"\x83")
def _ext2(m: Machine, pos: int) -> int:
    return _extension(m, pos, 2, U16(m.data, pos)[0])


@opcode(b"\x84")
def _ext4(m: Machine, pos: int) -> int:
    return _extension(m, pos, 4, I32(m.data, pos)[0])


def _resolve(m: Machine, pid: Any, pos: int) -> None:
    m.room -= 1
    if m.storage is not None:
        try:
            m.stack.append(m.storage(pid))
            return
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            raise Malformed("a persistent id is no storage", pos) from None
    m.stack.append(Persistent(pid))


@opcode(b"P")
def _persid(m: Machine, pos: int) -> int:
    text, end = m.line(pos)
    _resolve(m, str(text, "latin-1"), pos)
    return end


@opcode(b"Q")
def _binpersid(m: Machine, pos: int) -> int:
    _resolve(m, m.stack.pop(), pos)
    return pos
