"""JSON from strangers: size, depth and numbers bounded, duplicate keys reported instead of silently dropped."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ddaudit.inert.nodes import Malformed

MAX_BYTES = 256 << 20
MAX_DEPTH = 128
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)  # possessive: linear also without an end quote
_DIGITS = re.compile(rb"[0-9]{1000}")


@dataclass(slots=True)
class JsonDocument:
    """A parsed document; `duplicates` names keys that one object gives twice (the last value is in `value`, as in
    json)."""

    value: Any
    duplicates: list[str] = field(default_factory=list)


def read_json(raw: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> JsonDocument:
    """Parses UTF-8 JSON; raises `Malformed` with the reason and position for anything it will not or cannot take."""
    if len(raw) > max_bytes:
        raise Malformed(f"{len(raw):,} bytes of JSON are more than the limit of {max_bytes:,}")
    _check_depth(raw, max_depth)
    document = JsonDocument(None)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) != len(items) and len(document.duplicates) < 100:
            seen: set[str] = set()
            document.duplicates += [key for key, _ in items if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
        return made

    try:
        document.value = json.loads(raw, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg}", error.pos) from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {type(error).__name__}") from None
    return document


def _check_depth(raw: bytes, max_depth: int) -> None:
    if _DIGITS.search(raw) and re.search(rb'(?<!["0-9A-Za-z])[0-9]{1000}', raw):
        raise Malformed("a number has more than 1,000 digits")
    depth = 0
    for match in _BRACKETS.finditer(raw):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise Malformed(f"nested deeper than {max_depth}", match.start())
        elif first in b"]}":
            depth -= 1
