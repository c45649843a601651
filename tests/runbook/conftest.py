"""A small pack for tests of runbooks: probes and checks that need neither torch nor ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddaudit import packs
from ddaudit.packs import Packs

PROBES = '''
from __future__ import annotations
from typing import Literal
from pydantic import BaseModel, ConfigDict, Field
from ddaudit.api import Measures, ProbeContext, probe

class ToyParams(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    steps: int = Field(3, ge=1)
    kind: Literal["a", "b"] = "a"
    note: str = ""
    heads: int = 4

    def misfit(self, ranks: int) -> str | None:
        return None if self.heads % ranks == 0 else f"{self.heads} heads do not spread over {ranks} ranks"

@probe("toy", produces=[Measures], params=ToyParams, where="ranks")
def toy(context: ProbeContext, params: ToyParams) -> None:
    """Records one number."""
    context.measure("toy.v", params.steps)
'''

CHECKS = '''
from __future__ import annotations
from collections.abc import Iterator
from ddaudit.api import Finding, LaunchFacts, Limit, Limits, Measures, Plant, TrainingTrace, check, ok

class ToyLimits(Limits):
    family = "toy"
    v: Limit = Limit(fail_above=4)

@check("toy.value", asks="Is v small?", plant=Plant("v is big", "toy.big", probe="toy", planted={"steps": 9}))
def value(measures: Measures, limits: ToyLimits) -> Iterator[Finding]:
    """Looks at v."""
    yield ok("fine")

@check("toy.trace", asks="A trace?", plant=Plant("x", "toy.x", planted={"plant": "x"}))
def trace(trace: TrainingTrace) -> Iterator[Finding]:
    """Needs what the toy probe does not record."""
    yield ok("fine")
'''


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the pack."""
    folder = tmp_path_factory.mktemp("toy-pack")
    for part, text in (("probes", PROBES), ("checks", CHECKS)):
        (folder / part).mkdir()
        (folder / part / "toy.py").write_text(text)
    return folder


@pytest.fixture(scope="session")
def loaded(pack: Path) -> Packs:
    """The built-in pack and the toy pack."""
    return packs.load([pack], entries=False, environment=False)
