"""The ``limits`` table of a step: nested TOML keys to ``family.metric`` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.limits import Limit

__all__ = ["flatten"]

BOUNDS = frozenset(Limit.model_fields)


def flatten(limits: Mapping[str, Any]) -> dict[str, Any]:
    """``{"parallel": {"grad_rel_l2": {"fail_above": 1e-10}}}`` -> ``{"parallel.grad_rel_l2": {"fail_above": 1e-10}}``.

    A table is a limit when it holds a bound's name or anything that is not a table; whether it is a right one is for
    the rules to say.
    """
    return dict(_leaves(limits, ()))


def _leaves(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        inner = isinstance(item, Mapping) and item and not BOUNDS & set(item)
        if inner and all(isinstance(v, Mapping) for v in item.values()):
            yield from _leaves(item, (*path, str(key)))
        else:
            yield ".".join((*path, str(key))), item
