"""ddaudit: runbook-driven diagnostics and checkpoint audits for distributed PyTorch training.

``ddaudit.run``, ``ddaudit.resume`` and ``ddaudit.load_run`` run, go on and read back as the command line does; they are
imported on first use. Packs import from :mod:`ddaudit.api`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddaudit.calls import Run, load_run, resume, run
    from ddaudit.errors import Problem

__version__ = "0.1.0"

__all__ = ["Problem", "Run", "__version__", "load_run", "resume", "run"]

_HOMES = dict.fromkeys(("Run", "load_run", "resume", "run"), "ddaudit.calls") | {"Problem": "ddaudit.errors"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ddaudit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
