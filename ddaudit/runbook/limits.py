"""The ``limits`` table of a step: nested TOML keys to ``family.metric`` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.limits import Limit

__all__ = ["flatten"]

BOUNDS = frozenset(Limit.model_fields)


def flatten(limits: Mapping[str, Any]) -> dict[str, Any]:
    """``{"parallel": {"grad_rel_l2": {"fail_above": 1e-10}}}`` -> ``{"parallel.grad_rel_l2": {"fail_above": 1e-10}}``.

    A table is a limit when it is empty or one of its keys is a bound, or is meant as one; whether it is a right limit
    is for the rules to say. What is no table at all comes back as it is, for the same reason.
    """
    return dict(_leaves(limits, ()))


def _leaves(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item and not any(_like_bound(inner) for inner in item):
            yield from _leaves(item, (*path, str(key)))
        else:
            yield ".".join((*path, str(key))), item


def _like_bound(key: str) -> bool:
    return key in BOUNDS or key.endswith(("_above", "_below")) or key in ("above", "below", "min", "max")
