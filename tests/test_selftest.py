"""Every registered check proves on real runs that it can fail, and a check gutted to ``return`` is caught."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from ddaudit import packs
from ddaudit.engine.selftest import Collected, collect, rows
from ddaudit.findings import Finding
from ddaudit.registry import CheckSpec

LOADED = packs.load(entries=False, environment=False)


def sampled(spec: CheckSpec) -> CheckSpec:
    """Of a matrix of faults and types, cells that together show each fault and each type once; of plants that start a
    whole script, the first. Other plants are all kept. `ddaudit selftest` runs every one."""
    faults: set[object] = set()
    types: set[str] = set()
    kept = []
    for plant in spec.plants:
        fault = "watched" if plant.probe == "watch" else plant.planted.get("plant", plant.name)
        if not plant.not_applicable and (fault not in faults or plant.types not in types):
            faults.add(fault)
            types.add(plant.types)
            kept.append(plant)
    return dataclasses.replace(spec, plants=tuple(kept))


CHECKS = [sampled(spec) for spec in LOADED.registry.checks.values()]


@pytest.fixture(scope="session")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """The evidence of every plant and twin, recorded once."""
    return collect(LOADED, CHECKS, tmp_path_factory.mktemp("selftest"))


def test_the_builtin_pack_loads_whole():
    assert LOADED.failures == []
    assert len(CHECKS) > 10


@pytest.mark.parametrize("spec", CHECKS, ids=lambda s: s.id)
def test_a_check_turns_red_on_its_plant_and_stays_quiet_on_the_twin(spec: CheckSpec, collected: Collected):
    table = rows([spec], collected)
    assert table
    assert {row.plant: row.why for row in table if not row.ok} == {}


@pytest.mark.parametrize("spec", CHECKS, ids=lambda s: s.id)
def test_a_check_whose_body_is_return_fails_the_selftest(spec: CheckSpec, collected: Collected):
    def gutted(**_: Any) -> Iterator[Finding]:
        return
        yield

    table = rows([dataclasses.replace(spec, function=gutted)], collected)
    assert table
    assert not any(row.ok for row in table)


def test_a_check_without_a_plant_fails_the_selftest(collected: Collected):
    bare = dataclasses.replace(CHECKS[0], plants=())
    assert [(row.ok, row.why) for row in rows([bare], collected)] == [(False, "the check ships no plant")]


def test_collected_evidence_is_kept_on_disk(collected: Collected):
    assert collected.evidence
    assert all(isinstance(seconds, float) for seconds in collected.seconds.values())
