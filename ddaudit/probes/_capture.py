"""Numbers out of a program's output: JSON paths and regular expressions. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["Capture", "Captured", "Pick", "read"]

Pick = Literal["first", "last", "min", "max", "all"]
_METRIC = re.compile(r"[A-Za-z][\w.-]{0,63}")
#: Measured for every program, so no capture may claim these names.
RESERVED = ("exit_code", "seconds")


class Capture(BaseModel):
    """What to look for. Each entry names a measure; a measure may be captured in one way only.

    ``json``: measure -> path of keys and list indices, ``gpus.0.bandwidth``; ``*`` stands for each item.
    ``regex``: measure -> pattern with a group ``(?P<value>...)``.
    ``groups``: one pattern whose named groups are measures, for tables: each matching line gives one of each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    json_: Mapping[str, str] = Field(default_factory=dict, alias="json")
    regex: Mapping[str, str] = Field(default_factory=dict)
    groups: str | None = None

    @field_validator("regex")
    @classmethod
    def _patterns(cls, patterns: Mapping[str, str]) -> Mapping[str, str]:
        for metric, pattern in patterns.items():
            if "value" not in _compiled(pattern).groupindex:
                raise ValueError(f"the pattern of {metric!r} has no group (?P<value>...)")
        return patterns

    @field_validator("groups")
    @classmethod
    def _groups(cls, pattern: str | None) -> str | None:
        if pattern is not None and not _compiled(pattern).groupindex:
            raise ValueError("has no named group; write (?P<measure>...) for each measure")
        return pattern

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [*self.json_, *self.regex, *(_compiled(self.groups).groupindex if self.groups else ())]
        for name in names:
            if not _METRIC.fullmatch(name) or name in RESERVED:
                why = "is measured anyway" if name in RESERVED else "is no measure's name (letters, digits, . _ -)"
                raise ValueError(f"{name!r} {why}")
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is captured twice")
        return self

    def names(self) -> list[str]:
        """Every measure that will have a value or a reason why not."""
        return [*self.json_, *self.regex, *(_compiled(self.groups).groupindex if self.groups else ())]


@dataclass(frozen=True)
class Captured:
    """Values of one measure, or why there is none."""

    name: str
    values: Sequence[float | int | str]
    absent: str | None = None


def read(capture: Capture, text: str, pick: Pick) -> Iterator[Captured]:
    """Looks for every measure in a program's output, in the order of :meth:`Capture.names`."""
    if capture.json_:
        document, problem = _document(text)
        for name, path in capture.json_.items():
            found = [] if problem else [v for v in (_plain(x) for x in _at(document, path.split("."))) if v is not None]
            yield _picked(name, found, pick, problem or f"the output has no number at {path!r}")
    for name, pattern in capture.regex.items():
        found = [_number(match["value"]) for match in _compiled(pattern).finditer(text) if match["value"] is not None]
        yield _picked(name, found, pick, f"nothing in the output matches {pattern!r}")
    if capture.groups:
        matches = list(_compiled(capture.groups).finditer(text))
        for name in _compiled(capture.groups).groupindex:
            found = [_number(match[name]) for match in matches if match[name] is not None]
            yield _picked(name, found, pick, f"no line of the output matches {capture.groups!r}")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


def _document(text: str) -> tuple[Any, str | None]:
    """The output as JSON; failing that its last line, since programs log before they print their result."""
    lines = [line for line in text.splitlines() if line.strip()]
    for candidate in (text, *lines[-1:]):
        try:
            return json.loads(candidate), None
        except (ValueError, RecursionError):
            continue
    return None, "the output is no JSON" if lines else "there is no output"


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if not path:
        yield value
    elif isinstance(value, Mapping):
        inner = list(value.values()) if path[0] == "*" else [value[path[0]]] if path[0] in value else []
        for item in inner:
            yield from _at(item, path[1:])
    elif isinstance(value, list):
        chosen = value if path[0] == "*" else value[int(path[0]) : int(path[0]) + 1] if path[0].isdecimal() else []
        for item in chosen:
            yield from _at(item, path[1:])


def _plain(value: Any) -> float | int | str | None:
    """A JSON leaf as a measure's value; truth becomes 1 or 0, tables and lists are no value."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return _number(value)
    return value if isinstance(value, int | float) else None


def _number(text: str) -> float | int | str:
    """A number where the text is one (thousands separators allowed), otherwise the text itself, cut to a word."""
    stripped = text.strip()
    grouped = re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", stripped)
    digits = stripped.replace(",", "") if grouped else stripped
    for kind in (int, float):
        try:
            return kind(digits)
        except ValueError:
            continue
    return stripped[:200]


def _picked(name: str, found: Sequence[float | int | str], pick: Pick, absent: str) -> Captured:
    if not found:
        return Captured(name, (), absent)
    if pick == "all":
        return Captured(name, tuple(found))
    if pick in ("min", "max"):
        numbers = [v for v in found if isinstance(v, int | float)]
        if not numbers:
            return Captured(name, tuple(found[-1:]))
        return Captured(name, ((min if pick == "min" else max)(numbers),))
    return Captured(name, (found[0 if pick == "first" else -1],))
