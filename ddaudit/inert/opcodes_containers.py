"""Opcodes that build containers: lists, dicts, sets and tuples."""

from __future__ import annotations

from typing import Any

from ddaudit.inert.machine import Machine, add_items, opcode, set_pairs
from ddaudit.inert.nodes import InertSet


@opcode(b"]")
def _empty_list(m: Machine, pos: int) -> int:
    m.room -= 1
    m.stack.append([])
    return pos


@opcode(b"}")
def _empty_dict(m: Machine, pos: int) -> int:
    m.room -= 1
    m.stack.append({})
    return pos


@opcode(b"\x8f")
def _empty_set(m: Machine, pos: int) -> int:
    m.room -= 1
    m.stack.append(InertSet([]))
    return pos


@opcode(b"l")
def _list(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.stack.append(items)
    return pos


@opcode(b"d")
def _dict(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    made: dict[Any, Any] = {}
    set_pairs(made, items, m, pos)
    m.stack.append(made)
    return pos


@opcode(b"\x91")
def _frozenset(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.stack.append(InertSet(items))
    return pos


@opcode(b"t")
def _tuple(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.stack.append(tuple(items))
    return pos


@opcode(b"\x85")
def _tuple1(m: Machine, pos: int) -> int:
    m.room -= 1
    m.stack[-1] = (m.stack[-1],)
    return pos


@opcode(b"\x86")
def _tuple2(m: Machine, pos: int) -> int:
    m.room -= 1
    second = m.stack.pop()
    m.stack[-1] = (m.stack[-1], second)
    return pos


@opcode(b"\x87")
def _tuple3(m: Machine, pos: int) -> int:
    m.room -= 1
    third, second = m.stack.pop(), m.stack.pop()
    m.stack[-1] = (m.stack[-1], second, third)
    return pos


@opcode(b"a")
def _append(m: Machine, pos: int) -> int:
    item = m.stack.pop()
    add_items(m.stack[-1], [item], m, pos)
    return pos


@opcode(b"e")
@opcode(b"\x90")
def _appends(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    add_items(m.stack[-1], items, m, pos)
    return pos


@opcode(b"s")
def _setitem(m: Machine, pos: int) -> int:
    value, key = m.stack.pop(), m.stack.pop()
    set_pairs(m.stack[-1], [key, value], m, pos)
    return pos


@opcode(b"u")
def _setitems(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    set_pairs(m.stack[-1], items, m, pos)
    return pos
