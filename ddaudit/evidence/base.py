"""What evidence is: frozen, typed data with units, the same whatever produced it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import numpy as np

    from ddaudit.evidence.events import Stream

__all__ = ["Array", "Evidence", "JsonEvidence"]


@dataclass(frozen=True)
class Array:
    """Numbers with a unit and named axes, such as ``("rank", "step")``. NaN (or -1 for ids) means "not recorded"."""

    values: np.ndarray[Any, np.dtype[Any]]
    unit: str
    axes: tuple[str, ...]


class Evidence:
    """Base of everything a check can ask about.

    A kind has three forms: the events that ranks wrote (:meth:`assemble`), the object that checks read, and the pair
    of JSON facts and arrays that the store keeps (:meth:`dump`, :meth:`restore`).
    """

    kind: ClassVar[str]

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        """Builds the evidence from one runbook step's event streams; None when they hold nothing of this kind."""
        raise NotImplementedError

    def dump(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns JSON-ready facts and named arrays; ``restore(*dump())`` equals the object."""
        raise NotImplementedError

    def brief(self) -> dict[str, Any]:
        """The facts that a run's record carries; less than :meth:`dump` where a kind has labels by the thousand."""
        return self.dump()[0]

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Inverse of :meth:`dump`."""
        raise NotImplementedError


class JsonEvidence(BaseModel, Evidence):
    """Evidence without arrays: a pydantic model that a probe emits whole (``context.emit_evidence(model)``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        for stream in streams:
            for event in stream.of("evidence"):
                if event.get("kind") == cls.kind:
                    return cls.model_validate(event["facts"])
        return None

    def dump(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return self.model_dump(mode="json"), {}

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        return cls.model_validate(dict(facts))


@dataclass(frozen=True)
class ArrayEvidence(Evidence):
    """Evidence made of JSON facts plus arrays; subclasses add typed access."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def dump(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return dict(self.facts), dict(self.arrays)

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        return cls(facts=dict(facts), arrays=dict(arrays))
