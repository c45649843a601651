"""What the checks of job files share: pointing at a setting, and plants that change the example in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddaudit.api import EXAMPLE_JOB, JobPlan, Plant, Where


def at(plan: JobPlan, *keys: str) -> Where:
    """The line of the first of these settings that the file holds."""
    return Where(file=plan.place(*keys), key=next((k for k in keys if k in plan.lines), keys[0] if keys else None))


def example(folder: Path, planted: bool) -> Mapping[str, Any]:
    """Writes the documented job file; the fault lies in the settings that a plant lays over it."""
    path = folder / "job.toml"
    path.write_text(EXAMPLE_JOB, encoding="utf-8")
    return {"file": str(path)}


def plant(name: str, expect: str, **settings: int | float | str | bool) -> Plant:
    """A plant that sets keys of the example; ``__`` in a name stands for the dot of a nested key."""
    planted = {"set": {key.replace("__", "."): value for key, value in settings.items()}}
    return Plant(name, expect, probe="job", planted=planted, build=example, types="job")


def times(factor: float) -> str:
    return f"{factor:.3g}x"
