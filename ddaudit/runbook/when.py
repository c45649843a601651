"""Conditions of steps: ``gpus >= 2 and not slurm``.

Grammar (whitespace is free)::

    condition  = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation   = "not" negation | comparison
    comparison = operand [ ("==" | "!=" | "<" | "<=" | ">" | ">=") operand ]
    operand    = FACT | "$" NAME | NUMBER | 'text' | "text" | "true" | "false" | "(" condition ")"

Nothing is evaluated by Python: names are looked up in a table of facts, and that is all a condition can do.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ddaudit.registry import suggest

__all__ = ["FACTS", "Condition", "WhenError", "bind", "parse"]

Kind = Literal["number", "text", "flag"]

#: What a condition may ask: name -> (kind, meaning). The engine gathers these once, before the first step.
FACTS: dict[str, tuple[Kind, str]] = {
    "cpus": ("number", "CPU cores this process may use on this host"),
    "gpus": ("number", "CUDA devices visible on this host"),
    "ranks": ("number", "ranks of the largest step in this plan"),
    "hosts": ("number", "hosts that take part in the run"),
    "memory_bytes": ("number", "memory of this host in bytes"),
    "device": ("text", "what the ranks train on: cpu or cuda"),
    "backend": ("text", "what the ranks talk over: gloo or nccl"),
    "slurm": ("flag", "the run is inside a Slurm allocation"),
    "kubernetes": ("flag", "the run is inside a Kubernetes pod"),
    "torchrun": ("flag", "torchrun started this process"),
}

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?)|(?P<text>"[^"]*"|'[^']*')|(?P<op>==|!=|<=|>=|<|>|\(|\))"""
    r"""|(?P<name>\$?[A-Za-z_]\w*))"""
)
#: Deeper nesting than any condition a person can read; bounds the recursion on hostile input.
MAX_TOKENS = 200


class WhenError(ValueError):
    """A condition that cannot be read, with the reason."""


@dataclass(frozen=True)
class Name:
    """A fact, or a ``$parameter`` that :func:`bind` has yet to write in."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A number, a text or a truth value."""

    value: float | str | bool


@dataclass(frozen=True)
class Not:
    inner: Node


@dataclass(frozen=True)
class Both:
    """``and``, ``or`` or a comparison of two nodes."""

    op: str
    left: Node
    right: Node


Node = Name | Constant | Not | Both


@dataclass(frozen=True)
class Condition:
    """A parsed condition."""

    text: str
    root: Node

    def names(self) -> list[str]:
        """Facts and ``$parameters`` it asks for, in order of appearance."""
        return list(dict.fromkeys(n.name for n in _nodes(self.root) if isinstance(n, Name)))

    def decide(self, facts: Mapping[str, Any]) -> tuple[bool, str]:
        """Returns whether it holds, and why, with the values: ``gpus >= 2 is false (gpus = 0)``.

        A fact that is absent or None is unknown; a condition that needs it is false and says so.
        """
        unknown = [n for n in self.names() if facts.get(n) is None]
        if unknown:
            return False, f"{self.text}: {', '.join(unknown)} is unknown here"
        holds = bool(_value(self.root, facts))
        values = ", ".join(f"{n} = {_shown(facts[n])}" for n in self.names())
        return holds, f"{self.text} is {_shown(holds)}" + (f" ({values})" if values else "")

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """What is wrong with it once parameters are written in, and a hint: unknown facts, unlike things compared."""
        table = {name: kind for name, (kind, _) in FACTS.items()}
        for name in self.names():
            if name not in table:
                yield f"there is no fact {name!r}", suggest(name, table)
        for node in _nodes(self.root):
            if isinstance(node, Both) and node.op in _COMPARE:
                yield from _unlike(node, table)


def parse(text: str) -> Condition:
    """Reads a condition.

    Raises:
        WhenError: it does not follow the grammar.
    """
    reader = _Reader(text)
    root = reader.either()
    if reader.peek() is not None:
        raise WhenError(f"did not expect {reader.peek()!r} in {text!r}")
    return Condition(text.strip(), root)


def bind(text: str, params: Mapping[str, Any]) -> str:
    """Writes ``$parameters`` into a condition as constants."""

    def constant(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None or name[1:] not in params or name[0] != "$":
            return match.group()
        value = params[name[1:]]
        if isinstance(value, str):
            return match.group().replace(name, f"'{value}'" if "'" not in value else f'"{value}"')
        return match.group().replace(name, _shown(value))

    return _TOKEN.sub(constant, text)


class _Reader:
    """Recursive descent over the tokens, one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = list(_tokens(text))
        self.at = 0
        if len(self.words) > MAX_TOKENS:
            raise WhenError(f"has {len(self.words)} words; at most {MAX_TOKENS}")

    def peek(self) -> str | None:
        return self.words[self.at] if self.at < len(self.words) else None

    def take(self) -> str:
        word = self.peek()
        if word is None:
            raise WhenError(f"{self.text!r} ends too early")
        self.at += 1
        return word

    def either(self) -> Node:
        node = self.both()
        while self.peek() == "or":
            self.take()
            node = Both("or", node, self.both())
        return node

    def both(self) -> Node:
        node = self.negation()
        while self.peek() == "and":
            self.take()
            node = Both("and", node, self.negation())
        return node

    def negation(self) -> Node:
        if self.peek() == "not":
            self.take()
            return Not(self.negation())
        return self.comparison()

    def comparison(self) -> Node:
        left = self.operand()
        if (op := self.peek()) in _COMPARE:
            self.take()
            return Both(str(op), left, self.operand())
        return left

    def operand(self) -> Node:
        word = self.take()
        if word == "(":
            node = self.either()
            if self.take() != ")":
                raise WhenError(f"a parenthesis in {self.text!r} is not closed")
            return node
        if word in ("true", "false"):
            return Constant(word == "true")
        if word[0] in "\"'":
            return Constant(word[1:-1])
        if word[0].isdigit() or word[0] == "-":
            return Constant(float(word))
        if word in ("and", "or", "not") or not (word[0].isalpha() or word[0] in "$_"):
            raise WhenError(f"did not expect {word!r} in {self.text!r}")
        return Name(word)


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise WhenError(f"cannot read {text[at:].strip()[:20]!r} in {text!r}")
        at = match.end()
        yield match.group().strip()


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Not):
        yield from _nodes(node.inner)
    elif isinstance(node, Both):
        yield from _nodes(node.left)
        yield from _nodes(node.right)


def _value(node: Node, facts: Mapping[str, Any]) -> Any:
    match node:
        case Name(name):
            return facts[name]
        case Constant(value):
            return value
        case Not(inner):
            return not _value(inner, facts)
        case Both("and", left, right):
            return bool(_value(left, facts)) and bool(_value(right, facts))
        case Both("or", left, right):
            return bool(_value(left, facts)) or bool(_value(right, facts))
        case Both(op, left, right):
            a, b = _value(left, facts), _value(right, facts)
            alike = isinstance(a, str) == isinstance(b, str)
            return _COMPARE[op](a, b) if alike else op == "!="


def _unlike(node: Both, kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    left, right = _kind(node.left, kinds), _kind(node.right, kinds)
    if "any" not in (left, right) and left != right:
        yield f"compares a {left} with a {right}", "compare a number with a number, a text with a quoted text"
    elif node.op not in ("==", "!=") and "number" not in (left, right) and "any" not in (left, right):
        yield f"{node.op} needs numbers, not a {left}", "use == or !="


def _kind(node: Node, kinds: Mapping[str, str]) -> str:
    if isinstance(node, Name):
        return kinds.get(node.name, "any")
    if isinstance(node, Constant):
        return {bool: "flag", str: "text"}.get(type(node.value), "number")
    return "flag"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
