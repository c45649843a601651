"""The registry of checks, exhibits and probes: decorators that describe a function, and the table they fill.

A check is a generator function whose annotated parameters say what it needs: parameters whose type is a kind of
:class:`~ddaudit.evidence.Evidence` (``X | None`` where it can do without), at most one whose type is a
:class:`~ddaudit.limits.Limits`, and, by name, ``reference``: the same kind of evidence from another step.
"""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union

from pydantic import BaseModel, ConfigDict

from ddaudit.errors import PackProblem, UsageProblem
from ddaudit.evidence.base import Evidence
from ddaudit.findings import QUESTIONS, Finding
from ddaudit.limits import Limit, Limits
from ddaudit.plants import Plant

__all__ = [
    "CheckSpec",
    "ExhibitSpec",
    "NoParams",
    "ProbeSpec",
    "Registry",
    "Source",
    "check",
    "exhibit",
    "filling",
    "probe",
]

CheckFunction = Callable[..., Iterator[Finding]]
F = TypeVar("F", bound=Callable[..., Any])


class NoParams(BaseModel):
    """Parameters of a probe that takes none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Source:
    """Where something was declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Need:
    """One evidence parameter of a check."""

    type: type[Evidence]
    optional: bool


@dataclass(frozen=True)
class CheckSpec:
    """A registered check, described by its own signature and docstring."""

    id: str
    asks: str
    function: CheckFunction
    question: str | None
    plants: tuple[Plant, ...]
    needs: dict[str, Need]
    limits: tuple[str, type[Limits]] | None
    doc: str
    source: Source

    def metrics(self) -> dict[str, Limit]:
        """``family.metric`` -> default limit of everything a runbook may set for this check."""
        return self.limits[1].metrics() if self.limits else {}


@dataclass(frozen=True)
class ExhibitSpec:
    """A registered exhibit: a pure function from one kind of evidence to a small JSON table for the record."""

    name: str
    function: Callable[..., dict[str, Any] | None]
    needs: type[Evidence]
    source: Source


@dataclass(frozen=True)
class ProbeSpec:
    """A registered probe. ``where`` is "ranks" (one process a rank, joined by a process group) or "host" (one process
    without torch)."""

    name: str
    function: Callable[..., None]
    params: type[BaseModel]
    produces: tuple[type[Evidence], ...]
    where: Literal["ranks", "host"]
    doc: str
    source: Source


def _source(function: Callable[..., Any]) -> Source:
    code = function.__code__
    return Source(code.co_filename, code.co_firstlineno)


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """``X | None`` -> (X, True); anything else -> (itself, False)."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(inner) == 1:
            return inner[0], True
    return annotation, False


def _signature(function: Callable[..., Any], id: str) -> tuple[dict[str, Need], tuple[str, type[Limits]] | None]:
    """Reads needs and limits off a check's annotations; a parameter of any other type is a mistake of the pack."""
    hints = typing.get_type_hints(function)
    needs: dict[str, Need] = {}
    limits: tuple[str, type[Limits]] | None = None
    for name in inspect.signature(function).parameters:
        kind, optional = _unwrap(hints.get(name))
        if isinstance(kind, type) and issubclass(kind, Evidence):
            needs[name] = Need(kind, optional)
        elif isinstance(kind, type) and issubclass(kind, Limits) and limits is None:
            limits = (name, kind)
        else:
            raise PackProblem(
                f"check {id!r}: parameter {name!r} is annotated {hints.get(name)!r}",
                where=str(_source(function)),
                expected="an Evidence type, or one Limits type",
            )
    return needs, limits


def check(id: str, *, asks: str, plant: Plant | Sequence[Plant] = (), question: str | None = None) -> Callable[[F], F]:
    """Registers a check.

    Args:
        id: stable dotted id, ``family.what``.
        asks: the question in one sentence, for the catalogue and the reports.
        plant: the planted fault(s) that prove it can fail; ``lint`` refuses a check without one.
        question: one of the seven question ids, when the check helps to answer it.

    Raises:
        PackProblem: unknown question, or a signature that is not evidence plus limits.
    """

    def register(function: F) -> F:
        if question is not None and question not in QUESTIONS:
            raise PackProblem(
                f"check {id!r} names question {question!r}",
                where=str(_source(function)),
                expected=f"one of {', '.join(QUESTIONS)}",
            )
        needs, limits = _signature(function, id)
        plants = (plant,) if isinstance(plant, Plant) else tuple(plant)
        doc = inspect.cleandoc(function.__doc__ or "")
        spec = CheckSpec(id, asks, function, question, plants, needs, limits, doc, _source(function))
        function.spec = spec  # type: ignore[attr-defined]
        if (registry := _filling.get()) is not None:
            registry.add_check(spec)
        return function

    return register


def exhibit(name: str) -> Callable[[F], F]:
    """Registers an exhibit: ``function(evidence) -> dict | None``, whose numbers a report draws or tabulates.

    Its one parameter is annotated with the kind of evidence it reads. The result must be JSON, and small: it is kept in
    the record of every run. None says that the evidence holds nothing to show.

    Raises:
        PackProblem: the signature is not one kind of evidence.
    """

    def register(function: F) -> F:
        needs, limits = _signature(function, name)
        if len(needs) != 1 or limits is not None:
            what = f"exhibit {name!r} has {len(needs)} evidence parameters"
            raise PackProblem(what, where=str(_source(function)), expected="one, and nothing else")
        spec = ExhibitSpec(name, function, next(iter(needs.values())).type, _source(function))
        function.spec = spec  # type: ignore[attr-defined]
        if (registry := _filling.get()) is not None:
            registry.add_exhibit(spec)
        return function

    return register


def probe(
    name: str,
    *,
    produces: Sequence[type[Evidence]],
    params: type[BaseModel] = NoParams,
    where: Literal["ranks", "host"] = "host",
) -> Callable[[F], F]:
    """Registers a probe: ``function(context, params) -> None`` that records facts through ``context.events``."""

    def register(function: F) -> F:
        doc = inspect.cleandoc(function.__doc__ or "")
        spec = ProbeSpec(name, function, params, tuple(produces), where, doc, _source(function))
        function.spec = spec  # type: ignore[attr-defined]
        if (registry := _filling.get()) is not None:
            registry.add_probe(spec)
        return function

    return register


@dataclass
class Registry:
    """Checks, exhibits and probes by id, filled by the pack loader. An id declared twice is an error naming both."""

    checks: dict[str, CheckSpec] = field(default_factory=dict)
    probes: dict[str, ProbeSpec] = field(default_factory=dict)
    exhibits: dict[str, ExhibitSpec] = field(default_factory=dict)

    def add_check(self, spec: CheckSpec) -> None:
        self._refuse_twice("check", spec.id, spec.source, self.checks.get(spec.id))
        self.checks[spec.id] = spec

    def add_probe(self, spec: ProbeSpec) -> None:
        self._refuse_twice("probe", spec.name, spec.source, self.probes.get(spec.name))
        self.probes[spec.name] = spec

    def add_exhibit(self, spec: ExhibitSpec) -> None:
        self._refuse_twice("exhibit", spec.name, spec.source, self.exhibits.get(spec.name))
        self.exhibits[spec.name] = spec

    @staticmethod
    def _refuse_twice(what: str, id: str, source: Source, other: CheckSpec | ExhibitSpec | ProbeSpec | None) -> None:
        if other is not None and other.source != source:
            raise PackProblem(
                f"{what} {id!r} is declared twice",
                where=str(source),
                expected=f"one declaration; the other is {other.source}",
            )

    def select(self, patterns: Sequence[str]) -> list[CheckSpec]:
        """Checks matching ids or globs (``batch.*``), in registration order.

        Raises:
            UsageProblem: a pattern matches nothing (with the nearest id).
        """
        for pattern in patterns:
            if not fnmatch.filter(self.checks, pattern):
                raise UsageProblem(f"no check matches {pattern!r}", fix=suggest(pattern, self.checks))
        return [spec for id, spec in self.checks.items() if any(fnmatch.fnmatchcase(id, p) for p in patterns)]

    def probe(self, name: str) -> ProbeSpec:
        """The probe of that name; UsageProblem with the nearest name otherwise."""
        if name not in self.probes:
            raise UsageProblem(f"no probe is called {name!r}", fix=suggest(name, self.probes))
        return self.probes[name]


def suggest(word: str, known: typing.Iterable[str]) -> str:
    """One hint line: the nearest known word, or the list."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(names)}"


_filling: ContextVar[Registry | None] = ContextVar("filling", default=None)


@contextmanager
def filling(registry: Registry) -> Iterator[None]:
    """While active, decorators add to ``registry``. Outside, they only describe the function."""
    token = _filling.set(registry)
    try:
        yield
    finally:
        _filling.reset(token)
