"""The view: what templates and text are given. Flat, frozen, already worded; a pack's template may rely on it.

Every string is printable and one line (see :mod:`ddaudit.report.safe`), so a format adds only its own escaping. Fields
are added over time; none is renamed or removed without a new major version of the record schema.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddaudit.findings import Severity, Status, Verdict

__all__ = [
    "AnswerView",
    "Fact",
    "Headline",
    "IncidentView",
    "Mark",
    "Matrix",
    "Missing",
    "Node",
    "ProofLine",
    "Row",
    "StepView",
    "View",
]


@dataclass(frozen=True)
class Mark:
    """A status: ``glyph`` + ``word``; ``kind`` (good, warn, bad, none, waived) picks the colour, never the meaning."""

    word: str
    glyph: str
    kind: str

    def __str__(self) -> str:
        return f"{self.glyph} {self.word}"


_KINDS = {"PASS": "good", "WARN": "warn", "FAIL": "bad", "ERROR": "bad", "SKIP": "none", "WAIVED": "waived"}
_GLYPHS = {
    "done": ("✔", "good"),
    "failed": ("✖", "bad"),
    "skipped": ("◌", "none"),
    "timed-out": ("‼", "bad"),
    "interrupted": ("‼", "bad"),
    "INCONCLUSIVE": ("◌", "none"),
    "not-measured": ("◌", "none"),
    "not-asked": ("·", "none"),
}


def mark(word: Status | Verdict | str) -> Mark:
    """The mark of a status, verdict, answer status or step state."""
    text = str(word)
    if text in Status.__members__:
        return Mark(text, Status(text).glyph, _KINDS[text])
    glyph, kind = _GLYPHS.get(text, ("‼", "bad"))
    return Mark(text, glyph, kind)


@dataclass(frozen=True)
class Headline:
    """One of the first ten lines: ``label`` (Cause, Why, Do now ...) and its text. ``commands``: copyable lines."""

    label: str
    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One group of findings. ``count`` findings say it; ``members`` lists each (place, measured, text) when several."""

    mark: Mark
    check: str
    id: str
    step: str
    severity: Severity
    question: str
    text: str
    where: str
    measured: str
    limit: str
    limit_source: str
    evidence: str
    remedy: str
    commands: tuple[str, ...]
    count: int = 1
    members: tuple[tuple[str, str, str], ...] = ()
    since_step: str = ""

    @property
    def versus(self) -> str:
        """``measured 3 MiB, limit 2 MiB``, with what is known of it."""
        parts = [f"measured {self.measured}"] if self.measured != "–" else []
        parts += [f"limit {self.limit}"] if self.limit != "–" else []
        return ", ".join(parts)

    @property
    def compared(self) -> str:
        """:attr:`versus` and where the limit came from: ``measured 3 MiB, limit 2 MiB (runbook.md:12)``."""
        source = f" ({self.limit_source})" if self.limit_source and self.limit != "–" else ""
        return self.versus + source


@dataclass(frozen=True)
class AnswerView:
    """One of the seven questions: ``name`` is the question in full. ``rows`` hold what did not pass and examples of
    what did; ``more_rows`` groups that passed are left to the list of all."""

    id: str
    name: str
    mark: Mark
    answer: str
    rows: tuple[Row, ...] = ()
    more_rows: int = 0


@dataclass(frozen=True)
class StepView:
    """One planned step. ``outcome`` is its worst finding, None when nothing was judged; ``numbers`` are its key
    measurements, those that did not pass and equality with one device first."""

    id: str
    title: str
    state: Mark
    outcome: Mark | None
    seconds: str
    did: str
    reason: str = ""
    numbers: tuple[Row, ...] = ()
    more_numbers: int = 0


@dataclass(frozen=True)
class Matrix:
    """The page "Ready to scale?": ``rows`` are cells beside a row head (the parallelism); a Mark is a status cell."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str | Mark, ...]], ...]
    advice: str


@dataclass(frozen=True)
class Missing:
    """Something that was not measured, why, and what would be needed.

    ``mark`` is None for what no run of this size and kind can see.
    """

    mark: Mark | None
    what: str
    why: str


@dataclass(frozen=True)
class Fact:
    """One line about the environment."""

    name: str
    value: str


@dataclass(frozen=True)
class ProofLine:
    """One line of a log or dump that proves an incident."""

    file: str
    line: str
    text: str


@dataclass(frozen=True)
class IncidentView:
    """What a triage found: ``proof`` are its lines, ``alternatives`` pairs of another cause and why it is not that."""

    cause: str
    title: str
    confidence: str
    since: str
    why: str
    proof: tuple[ProofLine, ...]
    alternatives: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A step of a triage runbook's page and where it leads: ``edges`` are (outcome, target, whether it was walked).

    ``mark`` is None for a step that the walk did not reach.
    """

    id: str
    title: str
    mark: Mark | None
    edges: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True)
class View:
    """A whole report."""

    title: str
    verdict: Mark
    exit_code: int
    command: str
    run_id: str
    created: str
    complete: bool
    first_line: str
    headlines: tuple[Headline, ...]
    counts: tuple[tuple[Mark, int], ...]
    problems: tuple[Row, ...]
    questions: tuple[AnswerView, ...]
    steps: tuple[StepView, ...]
    matrix: Matrix | None
    passed: tuple[Row, ...]
    missing: tuple[Missing, ...]
    differences: tuple[Fact, ...]
    facts: tuple[Fact, ...]
    repeat: tuple[Fact, ...]
    repeat_command: str
    version: str
    measuring_cost: str = ""
    incident: IncidentView | None = None
    path: tuple[Node, ...] = ()
