"""Reads ``job.toml``. Every mistake is one line: ``file:line: key: what, expected, fix``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddaudit.errors import UsageProblem
from ddaudit.job.model import JobFile
from ddaudit.runbook.messages import mistakes

__all__ = ["LoadedJob", "load_job", "parse_job"]

#: A job file has a few dozen lines; a longer one is something else.
MAX_BYTES = 256 << 10
_HEADER = re.compile(r"\s*\[\s*([\w.\-\"' ]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w\-\"']+(?:\s*\.\s*[\w\-\"']+)*)\s*=")
#: TOML's own range of whole numbers.
MAX_INT_BITS = 63
#: ``baseline.layout.tp`` is three deep.
MAX_DEPTH = 8

Keys = tuple[str, ...]


@dataclass(frozen=True)
class LoadedJob:
    """A valid job file. ``lines`` maps dotted keys to lines; keys that a flag set have none."""

    job: JobFile
    file: str
    lines: Mapping[str, int]


@dataclass(frozen=True)
class _Places:
    """Where a key was set: in a line of the file, or by a flag."""

    path: str
    lines: Mapping[Keys, int]
    flags: tuple[str, ...]

    def __call__(self, keys: Keys) -> str:
        set_by = next((f for f in self.flags if keys[: f.count(".") + 1] == tuple(f.split("."))), None)
        return f"{self.path}:{self.line(keys)}" if set_by is None else f"flag {set_by}"

    def line(self, keys: Keys) -> int:
        """Line of a key, or of the nearest table around it (an inline table has one line for all of its keys)."""
        return next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 1)


def load_job(path: str | Path, overrides: Mapping[str, Any] | None = None) -> LoadedJob:
    """Reads and validates a job file.

    ``overrides`` maps dotted keys (``"layout.tp"``) to values that win over the file's: what a command's flags set. A
    value given as text is read as TOML, and as plain text where it is none.

    Raises:
        UsageProblem: the file cannot be read, is no TOML, or says something that no job can mean.
    """
    return parse_job(_read(Path(path)), str(path), overrides)


def parse_job(text: str, path: str, overrides: Mapping[str, Any] | None = None) -> LoadedJob:
    """The same for text that was read already; ``path`` is for messages."""
    table, lines = _table(text, path), _lines(text)
    given = {key: _value(value) for key, value in (overrides or {}).items()}
    for key, value in given.items():
        _set(table, key, value)
    places = _Places(path, lines, tuple(given))
    _refuse_monsters(table, places)
    try:
        job = JobFile.model_validate(table)
    except ValidationError as error:
        raise _first(error, places) from None
    shown = {".".join(k): n for k, n in lines.items() if ".".join(k) not in given}
    return LoadedJob(job, Path(path).name, shown)


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            what = "is no plain file" if path.exists() else "no such file"
            raise UsageProblem(what, where=str(path), expected="a job file", fix="`ddaudit new job` writes one")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from None
    if len(data) > MAX_BYTES:
        raise UsageProblem("is too large for a job file", where=str(path), expected=f"at most {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageProblem("is not UTF-8 text", where=f"{path}:{line}", fix="save the file as UTF-8") from None


def _table(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageProblem("wrong TOML: nested too deeply", where=path) from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        reason = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place and place[1] else text.rstrip("\n").count("\n") + 1
        if reason.startswith(("Cannot overwrite", "Duplicate", "Cannot declare")):
            raise _twice(text, path, line, reason) from None
        raise UsageProblem(f"wrong TOML: {reason}", where=f"{path}:{line}") from None
    except ValueError:  # Python reads no number of thousands of digits
        raise UsageProblem("wrong TOML: a number is too long", where=path, expected="a number below 2^63") from None


def _twice(text: str, path: str, line: int, reason: str) -> UsageProblem:
    """A key that is set twice: names it and its first line. tomllib stops at or behind the second one."""
    keys = _lines("\n".join(text.split("\n")[:line]), last=True)
    key = max(keys, key=lambda k: keys[k], default=())
    first = _lines(text).get(key)
    if first is None or first == keys[key]:
        return UsageProblem(f"wrong TOML: {reason}", where=f"{path}:{line}", fix="keep one of them")
    what = f"{'.'.join(key)} is set twice"
    return UsageProblem(what, where=f"{path}:{keys[key]}", expected=f"once; the first is line {first}", fix="keep one")


def _lines(text: str, *, last: bool = False) -> dict[Keys, int]:
    """Line of every key and table header (1-based), by path; the first where one stands twice, unless ``last``."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = path = _split(header[1])
        elif key := _KEY.match(line):
            path = (*table, *_split(key[1]))
        else:
            continue
        if last or path not in found:
            found[path] = number
    return found


def _split(dotted: str) -> Keys:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"] if "\n" not in value else value
    except (ValueError, RecursionError):
        return value


def _set(table: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, key = dotted.split(".", MAX_DEPTH)
    for parent in parents:
        inner = table.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UsageProblem(f"cannot set {dotted}: {parent} is no table", expected="a key of the job file")
        table = inner
    table[key] = value


def _refuse_monsters(table: dict[str, Any], places: _Places) -> None:
    """Numbers and nesting that would break whoever prints them."""
    waiting: list[tuple[Keys, int, Any]] = [((), 0, table)]
    while waiting:
        keys, depth, value = waiting.pop()
        where = places(keys)
        if depth > MAX_DEPTH:
            raise UsageProblem(f"{'.'.join(keys[:3])} is nested too deeply", where=where, expected="plain settings")
        if isinstance(value, dict):
            waiting += [((*keys, str(key)), depth + 1, item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(keys, depth + 1, item) for item in value]
        elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise UsageProblem(f"{'.'.join(keys)} is out of range", where=where, expected="a number below 2^63")


def _first(error: ValidationError, places: _Places) -> UsageProblem:
    """The mistake that stands first in the file, and how many follow."""
    found = sorted(mistakes(error, JobFile), key=lambda m: places.line(m.keys))
    first = found[0]
    more = f"{len(found) - 1} more mistake(s) in this file" if len(found) > 1 else None
    fix = "; ".join(part for part in (first.fix, more) if part) or None
    return UsageProblem(first.what, where=places(first.keys), expected=first.expected, fix=fix)
