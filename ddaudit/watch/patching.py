"""Replacing torch's functions so that a fault of ours never reaches the script."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["Guard", "after_import", "wrap"]


class Guard:
    """Runs our side of a hook. A hook that raises is recorded once and not called again; other processes (forked
    loader workers) are left alone."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.broken: dict[str, str] = {}
        self.calls = 0
        self.cpu_s = 0.0
        """CPU time of our side of the hooks, in the threads that called them."""

    @property
    def active(self) -> bool:
        return os.getpid() == self.pid

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result, or None where it may not run or raised."""
        if os.getpid() != self.pid or name in self.broken:
            return None
        began = time.thread_time()
        try:
            return function(*args)
        except Exception:
            self.broken[name] = traceback.format_exc(limit=-6)
            if os.environ.get("DDAUDIT_WATCH_DEBUG"):
                sys.stderr.write(f"ddaudit: hook {name} broke\n{self.broken[name]}")
            return None
        finally:
            self.calls += 1
            self.cpu_s += time.thread_time() - began


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces ``owner.name`` by ``make(original)``, once, keeping its name and docstring."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "_ddaudit_watch", False):
        return
    replaced = functools.wraps(original)(make(original))
    replaced._ddaudit_watch = True  # type: ignore[attr-defined]
    setattr(owner, name, replaced)


def after_import(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Calls ``hook(module)`` once the module has been imported, at once where it is already."""
    if name in sys.modules:
        hook(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Waiter(name, hook))


class _Waiter(importlib.abc.MetaPathFinder):
    """Lets the other finders find one module, and gives it a loader that calls the hook."""

    def __init__(self, name: str, hook: Callable[[ModuleType], None]) -> None:
        self.name, self.hook = name, hook

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answers for its own module only, once."""
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.hook)
        return spec


class _Loader(importlib.abc.Loader):
    """The real loader, then the hook. A hook that fails leaves the module as it is."""

    def __init__(self, loader: importlib.abc.Loader, hook: Callable[[ModuleType], None]) -> None:
        self.loader, self.hook = loader, hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module, gives it its own loader back, calls the hook."""
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        try:
            self.hook(module)
        except (AttributeError, TypeError) as error:
            sys.stderr.write(f"ddaudit: {module.__name__} is not watched: {error}\n")
