"""Names that a package offers and that are imported from their homes when they are first asked for.

Most commands use a few of them, and building the models of all others takes longer than reading a GiB does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["offered"]


def offered(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package`` (PEP 562). ``homes``: module -> the names in it, separated by blanks;
    ``A=B`` offers the home's B as A."""
    home_of = {name.split("=")[0]: (home, name.split("=")[-1]) for home, all_ in homes.items() for name in all_.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, own = home_of[name]
        value = getattr(import_module(home), own)
        setattr(sys.modules[package], name, value)  # the next use is an ordinary one
        return value

    return find
