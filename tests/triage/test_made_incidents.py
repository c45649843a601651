"""Incidents made up over all causes: the right cause, the right culprit, and never a wrong one."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from ddaudit.triage.answer import investigate
from ddaudit.triage.catalogue import load_catalogue
from tests.triage.made import cluster, gpu, hangs, software, varied
from tests.triage.made.label import SCENARIOS, Label
from tests.triage.made.world import World

assert all((cluster, gpu, hangs, software, varied))  # importing them fills the table

ZONES_H = (0, 0, 1, -7, 2, 9)


def make(key: str, seed: int, folder: Path) -> Label:
    """Writes one incident into a folder and returns the right answer."""
    _, scenario, shape = SCENARIOS[key]
    world = World(seed=zlib.crc32(key.encode()) + seed, zone_h=ZONES_H[seed % len(ZONES_H)], **shape)
    label = scenario(world)
    for name, content in world.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return label


def test_all_causes_are_made_up():
    causes = {cause for cause, _, _ in SCENARIOS.values()}
    assert causes == set(load_catalogue().causes)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("key", SCENARIOS)
def test_a_made_up_incident_is_solved(key, seed, tmp_path):
    cause, _, _ = SCENARIOS[key]
    label = make(key, seed, tmp_path)
    answer = investigate([tmp_path]).to_json()
    guilty = answer["guilty"]
    if label.nobody:
        assert not {"rank", "host", "gpu"} & set(guilty), "nobody is to blame"
    for field in ("rank", "host"):
        if (want := getattr(label, field)) is not None:
            assert guilty.get(field) == want, field
    assert answer["cause"] in (cause, *label.accept)
    assert 0 < len(answer["evidence"]) <= 10
    assert answer["first_action"]
    assert bool(answer["missing_evidence"]) or not cause.startswith("unknown.")


@pytest.mark.parametrize("key", [k for k, (cause, _, _) in SCENARIOS.items() if cause != "none"])
def test_no_wrong_culprit_is_named_when_a_file_is_missing(key, tmp_path):
    """Whichever file was not collected, the answer may become undetermined, but it never accuses somebody else."""
    whole = tmp_path / "whole"
    label = make(key, 1, whole)
    files = sorted(p for p in whole.rglob("*") if p.is_file())
    if len(files) < 2 or label.nobody:
        return
    for number, gone in enumerate(files[:6]):
        part = tmp_path / f"part{number}"
        for path in files:
            if path != gone:
                target = part / path.relative_to(whole)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        guilty = investigate([part]).to_json()["guilty"]
        for field in ("rank", "host"):
            want = getattr(label, field)
            assert want is None or field not in guilty or guilty[field] == want, f"{gone.name} is missing"


def test_every_cited_line_is_in_its_file(tmp_path):
    make("gpu.fell-off-bus", 0, tmp_path)
    for cited in investigate([tmp_path]).to_json()["evidence"]:
        line = (tmp_path / cited["file"]).read_text().split("\n")[cited["line"] - 1]
        assert re.sub(r"\s+", " ", cited["text"])[:40] in re.sub(r"\s+", " ", line)
