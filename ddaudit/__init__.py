"""ddaudit: runbook-driven diagnostics and checkpoint audits for distributed PyTorch training.

``ddaudit.run``, ``resume``, ``load_run``, ``learn``, ``compare``, ``audit``, ``forecast`` and ``triage`` do what the
command line does; they are imported on first use. Packs import from :mod:`ddaudit.api`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddaudit import triage
    from ddaudit.calls import Run, audit, compare, forecast, learn, load_run, resume, run
    from ddaudit.errors import Problem

__version__ = "0.1.0"

__all__ = [
    "Problem",
    "Run",
    "__version__",
    "audit",
    "compare",
    "forecast",
    "learn",
    "load_run",
    "resume",
    "run",
    "triage",
]

_CALLS = ("Run", "audit", "compare", "forecast", "learn", "load_run", "resume", "run")
_HOMES = dict.fromkeys(_CALLS, "ddaudit.calls") | {"Problem": "ddaudit.errors"}


def __getattr__(name: str) -> Any:
    if name == "triage":
        return importlib.import_module("ddaudit.triage")
    if name not in _HOMES:
        raise AttributeError(f"module 'ddaudit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
