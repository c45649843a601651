"""Runs at interpreter start because ``ddaudit watch`` put this folder first on PYTHONPATH.

It hands on to the ``sitecustomize`` that would have run without it, then waits for torch: nothing else happens in a
process that never imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent


def _hand_on() -> None:
    """Runs the next ``sitecustomize`` on the path, if there is one, under its own name."""
    elsewhere = [p for p in sys.path if Path(p or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _TorchWaiter(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find torch and has the hooks put in right after it was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answers for ``torch`` only, once."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)
        return spec


class _Then(importlib.abc.Loader):
    """The real loader, followed by :func:`ddaudit.watch.install.install`."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Executes torch, gives it its own loader back, and puts the hooks in."""
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        root = os.environ.get("DDAUDIT_WATCH_ROOT")
        if root and root not in sys.path:
            sys.path.append(root)
        try:
            from ddaudit.watch.install import install
        except ImportError as error:
            sys.stderr.write(f"ddaudit: this process is not watched: {error}\n")
            return
        install()


if os.environ.get("DDAUDIT_WATCH_DIR"):
    sys.meta_path.insert(0, _TorchWaiter())
_hand_on()
