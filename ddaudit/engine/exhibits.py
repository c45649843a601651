"""Small tables that a pack's exhibits make of a step's evidence. Pure, like judging."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ddaudit.evidence.base import Evidence
from ddaudit.jsonio import dumps, encode
from ddaudit.registry import Registry

__all__ = ["MAX_BYTES", "exhibits"]

#: Of one exhibit as JSON. A record holds a few for each step, and every page carries the record.
MAX_BYTES = 64 << 10


def exhibits(evidence: Mapping[str, Evidence], registry: Registry) -> dict[str, Any]:
    """Exhibit name -> its table. One that raises or grows too large is left out with a warning in the log: a picture
    less is no reason to lose a verdict."""
    found: dict[str, Any] = {}
    for spec in registry.exhibits.values():
        if (item := evidence.get(spec.needs.kind)) is None:
            continue
        try:
            table = encode(spec.function(item))
            size = len(dumps(table))
        except Exception as error:
            logging.getLogger(__name__).warning("exhibit %s (%s): %s", spec.name, spec.source, error)
            continue
        if table and size <= MAX_BYTES:
            found[spec.name] = table
        elif table:
            logging.getLogger(__name__).warning("exhibit %s is left out: %d bytes of JSON", spec.name, size)
    return found
