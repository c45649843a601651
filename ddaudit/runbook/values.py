"""``$param`` and ``$step.metric`` inside values.

Parameters are filled in when the plan is made, metrics of earlier steps when a step starts. Only values are looked
at, never keys, and nothing is ever handed to a shell. ``$$`` is a plain ``$``; ``${name}`` parts a name from the text
behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddaudit.errors import UsageProblem

__all__ = ["MISSING", "Ref", "fill", "finish", "references", "resolve", "resolve_text"]

_NAME = r"[A-Za-z_][\w-]*(?:\.\w[\w-]*)*"
_REF = re.compile(rf"\$(?:(?P<dollar>\$)|(?P<bare>{_NAME})|\{{(?P<braced>{_NAME})\}})")
#: What a lookup returns for a name that it does not know and that must stay as it is.
MISSING = object()
#: ``spread.worst_node`` or ``ranks``, without the ``$``.
Ref = str
Lookup = Callable[[Ref], Any]


def references(value: Any) -> Iterator[Ref]:
    """Every name behind a ``$`` in a value, however deep; keys are not looked at."""
    if isinstance(value, str):
        yield from (m["bare"] or m["braced"] for m in _REF.finditer(value) if not m["dollar"])
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)


def fill(value: Any, params: Mapping[str, Any]) -> Any:
    """Puts parameters in, leaves ``$step.metric`` and ``$$`` for :func:`resolve`."""
    return _walk(value, lambda ref: params.get(ref, MISSING), last=False)


def finish(value: Any, params: Mapping[str, Any]) -> Any:
    """Puts parameters in and turns ``$$`` into ``$``: for values that may not wait for a metric."""
    return _walk(value, lambda ref: params.get(ref, MISSING), last=True)


def resolve(value: Any, metrics: Mapping[str, Mapping[str, Any]]) -> Any:
    """Puts measured values in and turns ``$$`` into ``$``; the last thing done before a step starts.

    ``metrics`` maps a step's id to what it measured, by name.

    Raises:
        UsageProblem: no earlier step measured it. The step cannot run; callers report it as not measured.
    """

    def lookup(ref: Ref) -> Any:
        step, _, metric = ref.partition(".")
        if metrics.get(step, {}).get(metric) is None:
            raise UsageProblem(f"${ref} was not measured", expected="an earlier step that measures it")
        return metrics[step][metric]

    return _walk(value, lookup, last=True)


def resolve_text(text: str, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """The same for text that people read (``remedy``, ``manual``), where an unknown ``$NAME`` belongs to a shell
    command and stays, and a metric that is missing says so."""

    def lookup(ref: Ref) -> Any:
        step, _, metric = ref.partition(".")
        return metrics[step].get(metric, f"<{ref}: not measured>") if step in metrics and metric else MISSING

    return str(_walk(text, lookup, last=True))


def _walk(value: Any, lookup: Lookup, *, last: bool) -> Any:
    if isinstance(value, str):
        return _text(value, lookup, last=last)
    if isinstance(value, Mapping):
        return {key: _walk(item, lookup, last=last) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, lookup, last=last) for item in value]
    return value


def _text(text: str, lookup: Lookup, *, last: bool) -> Any:
    """A value that is one reference keeps the type of what it refers to; inside text it becomes text."""
    whole = _REF.fullmatch(text)
    if whole and not whole["dollar"]:
        found = lookup(whole["bare"] or whole["braced"])
        if found is not MISSING:
            return found if last or not isinstance(found, str) else found.replace("$", "$$")
        return text

    def one(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$" if last else "$$"
        found = lookup(match["bare"] or match["braced"])
        if found is MISSING:
            return match.group()
        return str(found) if last else str(found).replace("$", "$$")

    return _REF.sub(one, text)
