"""Asks ``ddaudit triage`` about every made-up incident in every form that a collector may have given it.

    python -m benchmarks.incident_forms [--seeds 1] [--forms cri,split]

The scenarios and forms are those of ``tests/triage/made``; the tests run a sample, this runs all. A row is printed for
each answer that is wrong or incomplete. Exit 1 when anybody was wrongly accused, or below 95 % right.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ddaudit.triage.answer import investigate
from tests.triage.made.forms import FORMS
from tests.triage.made.label import SCENARIOS, Label
from tests.triage.made.world import World
from tests.triage.test_made_incidents import ZONES_H

PASS_SHARE = 0.95


def made(key: str, seed: int) -> tuple[dict[str, bytes], Label]:
    """The files of one scenario, by name, and the right answer."""
    _, scenario, shape = SCENARIOS[key]
    world = World(seed=zlib.crc32(key.encode()) + seed, zone_h=ZONES_H[seed % len(ZONES_H)], **shape)
    label = scenario(world)
    return {name: c if isinstance(c, bytes) else c.encode() for name, c in world.files.items()}, label


def answer(files: Mapping[str, bytes]) -> dict[str, Any]:
    """What triage says of these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return investigate([Path(folder)]).to_json()


def faults(told: Mapping[str, Any], cause: str, label: Label) -> tuple[list[str], bool]:
    """(what is wrong with an answer, whether somebody was wrongly accused)."""
    guilty, said, accused = told["guilty"], [], False
    if label.nobody and {"rank", "host", "gpu"} & set(guilty):
        said, accused = [f"accused {guilty}"], True
    for field in ("rank", "host"):
        want = getattr(label, field)
        if want is not None and guilty.get(field) != want:
            accused |= field in guilty
            said.append(f"{field} {guilty.get(field)}, not {want}")
    if told["cause"] not in (cause, *label.accept):
        said.append(f"cause {told['cause']}")
    return said if told["evidence"] else [*said, "no evidence"], accused


@click.command()
@click.option("--seeds", default=1, show_default=True)
@click.option("--forms", default=",".join(FORMS), help="Comma-separated; all by default.")
def main(seeds: int, forms: str) -> None:
    """Runs all scenarios in all forms."""
    cases = bad = wrong = 0
    for key, seed in ((k, s) for k in SCENARIOS for s in range(seeds)):
        files, label = made(key, seed)
        for form in forms.split(","):
            changed = FORMS[form](dict(files))
            if changed == files:
                continue
            said, accused = faults(answer(changed), SCENARIOS[key][0], label)
            cases, bad, wrong = cases + 1, bad + bool(said), wrong + accused
            if said:
                print(f"{form:14} {key} seed {seed}: {'; '.join(said)}")
    print(f"{cases} cases, {bad} wrong or incomplete, {wrong} wrongly accused")
    sys.exit(int(wrong > 0 or bad > (1 - PASS_SHARE) * cases))


if __name__ == "__main__":
    main()
