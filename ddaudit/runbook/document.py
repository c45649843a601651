"""Reads a runbook page: Markdown whose fences ``toml runbook`` and ``toml step <id>`` say what to run and ask.

markdown-it-py finds fences and their lines, tomllib reads them, pydantic validates them. Every mistake becomes a
:class:`~ddaudit.errors.RunbookProblem` that names ``file:line``, the step, what is wrong, what was expected and how to
mend it.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ddaudit.errors import RunbookProblem
from ddaudit.registry import suggest
from ddaudit.runbook.fences import Fence, Page
from ddaudit.runbook.lines import locate
from ddaudit.runbook.messages import mistakes
from ddaudit.runbook.model import Runbook, Step
from ddaudit.runbook.params import convert

__all__ = ["load_runbook", "parse_runbook", "read_page"]

M = TypeVar("M", bound=BaseModel)

#: A page longer than this is no page; bounds the work on hostile input.
MAX_BYTES = 1 << 20
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PARAM = re.compile(r"[A-Za-z_]\w{0,63}")
_SPELLING = "lower-case letters, digits, - and _ (at most 64)"
#: Words that edges use for something else.
RESERVED = ("next", "stop")
#: Filled in from the page itself.
_OURS = ("line", "toml", "prose", "path", "steps")


def load_runbook(path: str | Path) -> Runbook:
    """Reads and validates one page.

    Raises:
        RunbookProblem: the first mistake of the page.
    """
    runbook, problems = parse_runbook(read_page(path), str(path))
    if problems:
        raise problems[0]
    assert runbook is not None
    return runbook


def parse_runbook(text: str, path: str) -> tuple[Runbook | None, list[RunbookProblem]]:
    """The page and every mistake in it, in the order of lines; no page when its header cannot be read."""
    reader = _Reader(text, path)
    runbook = reader.runbook()
    return runbook, [problem for _, problem in sorted(reader.problems, key=lambda found: found[0])]


def read_page(path: str | Path) -> str:
    """The page's text, or a RunbookProblem when there is none."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise RunbookProblem("is too large for a runbook", where=str(path), expected=f"at most {MAX_BYTES} bytes")
        data = file.read_bytes()
    except OSError as error:
        raise RunbookProblem(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from None
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RunbookProblem("is not UTF-8 text", where=f"{path}:{line}", fix="save the page as UTF-8") from None


class _Reader:
    """One page while it is read. Mistakes are collected, so that lint shows all of them at once."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.page = Page(text)
        self.problems: list[tuple[int, RunbookProblem]] = []

    def blame(self, line: int, what: str, expected: str | None = None, fix: str | None = None) -> None:
        self.problems.append((line, RunbookProblem(what, where=f"{self.path}:{line}", expected=expected, fix=fix)))

    def runbook(self) -> Runbook | None:
        fences = self.page.fences
        for fence in fences:
            if fence.kind not in ("runbook", "step"):
                what = f"a fence 'toml {fence.kind}' means nothing here"
                self.blame(fence.line, what, "toml runbook or toml step ID", suggest(fence.kind, ("runbook", "step")))
        steps = [step for fence in fences if fence.kind == "step" and (step := self.step(fence))]
        self.refuse_twice(steps)
        headers = [fence for fence in fences if fence.kind == "runbook"]
        if not headers:
            self.blame(1, "there is no fence 'toml runbook'", 'a header fence that sets at least id = "..."')
            return None
        for extra in headers[1:]:
            self.blame(extra.line, "a second fence 'toml runbook'", f"one; the first is line {headers[0].line}")
        if not any(fence.kind == "step" for fence in fences):
            self.blame(headers[0].line, "there is no step", "at least one fence 'toml step ID'")
        return self.header(headers[0], steps)

    def header(self, fence: Fence, steps: Sequence[Step]) -> Runbook | None:
        table = self.table(fence, "")
        if table is None:
            return None
        given = {"title": self.page.title or table.get("id"), **table, "path": self.path, "line": fence.line}
        given |= {"toml": fence.toml, "prose": self.page.introduction(), "steps": ()}
        runbook = self.build(Runbook, given, fence, "")
        if runbook is None:
            return None
        if not _ID.fullmatch(runbook.id):
            self.blame(runbook.line_of("id"), f"id is {runbook.id!r}", _SPELLING)
        self.check_params(runbook)
        return runbook.model_copy(update={"steps": tuple(steps)})

    def check_params(self, runbook: Runbook) -> None:
        for name, param in runbook.params.items():
            line = runbook.line_of("params", name)
            if not _PARAM.fullmatch(name):
                self.blame(line, f"parameter {name!r} is no name", "letters, digits and _, not starting with a digit")
            try:
                if param.default is not None:
                    convert(param, param.default)
            except ValueError as error:
                self.blame(line, f"params.{name}.default: {error}", fix="change the default or its bounds")

    def step(self, fence: Fence) -> Step | None:
        if not _ID.fullmatch(fence.name) or fence.name in RESERVED:
            why = "is reserved for edges" if fence.name in RESERVED else "is no id"
            self.blame(fence.line, f"step {fence.name!r} {why}", f"toml step ID with {_SPELLING}")
            return None
        named = f"step {fence.name!r}: "
        table = self.table(fence, named)
        if table is None:
            return None
        given = {"title": self.page.heading(fence) or fence.name, **table, "id": fence.name, "line": fence.line}
        given |= {"toml": fence.toml, "prose": self.page.prose(fence)}
        step = self.build(Step, given, fence, named)
        if step is not None:
            self.check_step(step, named)
        return step

    def check_step(self, step: Step, named: str) -> None:
        if (step.probe is None) == (step.manual is None):
            what = "has neither 'probe' nor 'manual'" if step.probe is None else "has both 'probe' and 'manual'"
            self.blame(step.line, named + what, "one of them", 'set probe = "..." or manual = "a question"')
        for keys, value in _dates(step.with_, ()):
            line = step.line_of("with", *keys)
            self.blame(
                line, f"{named}with.{'.'.join(keys)} is the date {value}", "text, a number or a list", "quote it"
            )

    def refuse_twice(self, steps: Sequence[Step]) -> None:
        first: dict[str, Step] = {}
        for step in steps:
            if step.id in first:
                other = f"one; the first is line {first[step.id].line}"
                self.blame(step.line, f"step {step.id!r} exists twice", other, "rename one of them")
            first.setdefault(step.id, step)

    def table(self, fence: Fence, named: str) -> dict[str, Any] | None:
        """The fence's TOML, or None after blaming the line that tomllib stopped at."""
        if not fence.closed:
            self.blame(fence.line, f"{named}the fence is not closed", "a line with ``` behind it")
            return None
        try:
            table = tomllib.loads(fence.toml)
        except tomllib.TOMLDecodeError as error:
            self.wrong_toml(fence, named, str(error))
            return None
        except RecursionError:
            self.blame(fence.line, f"{named}wrong TOML: nested too deeply")
            return None
        for key in set(_OURS) | ({"id"} if fence.kind == "step" else set()):
            if key in table:
                self.blame(fence.line + locate(fence.toml, [key]), f"{named}unknown key {key!r}", fix="remove it")
        return table

    def wrong_toml(self, fence: Fence, named: str, message: str) -> None:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
        reason = message[: place.start()] if place else message
        within = int(place[1]) if place and place[1] else max(1, fence.toml.count("\n"))
        twice = reason.startswith(("Cannot overwrite", "Duplicate", "Cannot declare"))
        reason = f"a key is set twice ({reason})" if twice else reason
        self.blame(fence.line + within, f"{named}wrong TOML: {reason}", fix="keep one of them" if twice else None)

    def build(self, model: type[M], given: Mapping[str, Any], fence: Fence, named: str) -> M | None:
        try:
            return model.model_validate(given)
        except ValidationError as error:
            for found in mistakes(error, model):
                line = fence.line + locate(fence.toml, found.keys)
                self.blame(line, named + found.what, found.expected, found.fix)
        return None


def _dates(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """TOML dates and times inside a step's parameters: JSON has none, so no probe can be told one."""
    if isinstance(value, datetime.date | datetime.time):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _dates(item, (*keys, str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _dates(item, keys)
