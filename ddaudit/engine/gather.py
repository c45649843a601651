"""Evidence of a step, read from its event files. What is damaged costs its own kind only."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddaudit.engine.summary import summarise
from ddaudit.errors import Problem
from ddaudit.evidence.base import Evidence
from ddaudit.evidence.events import Stream, read_streams

__all__ = ["gather", "gather_others"]


def gather(run_dir: Path, folder: str, kinds: Iterable[type[Evidence]]) -> tuple[dict[str, Evidence], dict[str, str]]:
    """Returns evidence by kind, and by kind the reason why what is there could not be read."""
    return _assembled(read_streams(run_dir / "events" / folder), kinds)


def gather_others(run_dir: Path, folder: str, kinds: Iterable[type[Evidence]]) -> dict[str, dict[str, Evidence]]:
    """Evidence of a step that ran once on every host, by host, without the first host's, which :func:`gather` has. A
    host whose evidence cannot be read has none, and its checks say so."""
    by_host: dict[str, list[Stream]] = {}
    for stream in read_streams(run_dir / "events" / folder):
        if (start := stream.first("start")) is not None:
            by_host.setdefault(str(start.get("host")), []).append(stream)
    wanted = list(kinds)
    return {host: _assembled(streams, wanted)[0] for host, streams in list(by_host.items())[1:]}


def _assembled(
    streams: Sequence[Stream], kinds: Iterable[type[Evidence]]
) -> tuple[dict[str, Evidence], dict[str, str]]:
    found: dict[str, Evidence] = {}
    damage: dict[str, str] = {}
    for kind in kinds:
        try:
            item = kind.assemble(streams)
            if item is not None:
                item.dump()
                summarise({kind.kind: item})
                found[kind.kind] = item
        except Problem as problem:
            damage[kind.kind] = str(problem)
        except Exception as error:
            # Event files may come from anywhere, and kinds from packs: whatever they do ends here.
            last = traceback.extract_tb(error.__traceback__)[-1]
            first = str(error).partition("\n")[0]
            damage[kind.kind] = f"{type(error).__name__}: {first} ({Path(last.filename).name}:{last.lineno})"
    return found, damage
