"""Who makes the others wait, by which of its own lines, and what the windows say: the rank, its data or its place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ._arrays import Table
from ._ledger import Ledger
from ._suspects import Suspect, _ms
from ._windows import OWN, View

__all__ = ["lateness"]

PERSISTENT = 0.7


def lateness(view: View, share: float, core: float) -> Iterator[Suspect]:
    """One persistent straggler, or lateness that roams; a pipeline's stages by what they compute."""
    if view.rows < 2:
        return
    if view.trace.job.parallel == "pipeline":
        yield from _stage(view, share)
        return
    if not view.books.split:
        return
    charged = view.books.charged
    lost = view.books.lost
    row = int(np.argmax(lost))
    often = float(np.mean(charged.argmax(axis=0) == row))
    price = float(lost[row])
    if often >= PERSISTENT and price >= 0.5 * share * view.step_s:
        yield _persistent(view, share, core, row, price)
    else:
        yield from _roaming(view)


def excess(books: Ledger, name: str, row: int) -> float:
    """Seconds by which a rank's line exceeds the median of the others' in the same steps (median over steps)."""
    others = [r for r in range(len(books.step)) if r != row]
    return float(np.median(books.lines[name][row] - np.median(books.lines[name][others], axis=0)))


def _gap(table: Table | None, row: int) -> float:
    """The same for any series [rank, step]."""
    if table is None:
        return 0.0
    others = [r for r in range(len(table)) if r != row]
    return float(np.median(table[row] - np.median(table[others], axis=0)))


def _persistent(view: View, share: float, core: float, row: int, price: float) -> Suspect:
    """The straggler, with its own reason."""
    lines = {name: excess(view.books, name, row) for name in OWN}
    own = min(price, sum(max(0.0, line) for line in lines.values()))
    held = _held_back(view, row, price, core)
    if held is not None:
        return Suspect(held[0], held[1], price, share, row, held[2], "", specific=True)
    cause = max(lines, key=lambda name: lines[name])
    named = _moved_with_data(view, row, price) or _more_tokens(view, row, own)
    if named is not None:
        return Suspect(named[0], named[1], own, share, row, named[2], "", specific=True, line=cause)
    rank = view.trace.ranks[row].rank
    what = f"rank {rank} comes last and costs the others {_ms(price)}; its own {cause} is {_ms(lines[cause])} longer"
    if own < 0.5 * share * view.step_s:
        return Suspect("perf.straggler-rank", what, price, share, row, "", "swap its host or its data")
    price = own  # the rest of its lateness is waiting for a core, which is the neighbours' doing
    id = "perf.host-work-on-rank0" if cause == "host" and rank == 0 else "perf.straggler-rank"
    return Suspect(id, what, price, share, row, _alone(view, row, cause, price), "one rank at a time", line=cause)


def _held_back(view: View, row: int, price: float, share: float) -> tuple[str, str, str] | None:
    """A quota, or others on its core."""
    rank, held = view.trace.ranks[row].rank, view.rate("throttled_s", row) * view.books.step_s(row)
    if held >= 0.3 * price:
        what = f"a CPU quota holds rank {rank} back, and the others wait {_ms(price)} for it"
        return "perf.cpu-quota", what, f"the kernel counted {_ms(held)} of throttling a step"
    others, core = view.others_cores(row), excess(view.books, "waiting for a core", row)
    if others < 0.2 or core < max(0.4 * price, share * view.step_s):
        return None
    solo = view.window("solo")
    alone = 0.0 if solo is None else solo.line_s("waiting for a core", row)
    what = f"others use {others:.1f} cores where rank {rank} runs; it waits {_ms(core)} longer for a core"
    proof = f"on its own it waits {_ms(alone)} too" if alone >= 0.25 * core else ""
    return "perf.core-shared", what, proof


def _moved_with_data(view: View, row: int, price: float) -> tuple[str, str, str] | None:
    """Lateness that follows the data to the rank that borrows it."""
    swapped = view.window("swap")
    if swapped is None:
        return None
    lost = swapped.lost
    borrower = (row - 1) % view.rows
    if lost[borrower] < 0.5 * price or lost[row] > 0.5 * price:
        return None
    rank, tokens = view.trace.ranks[row].rank, view.series("tokens")
    proof = f"with swapped batches rank {view.trace.ranks[borrower].rank} is late by {_ms(float(lost[borrower]))}"
    if tokens is not None and _gap(tokens, row) > 0.1 * float(np.median(tokens)):
        return "perf.sequence-imbalance", f"rank {rank} reads {_gap(tokens, row):.0f} tokens more a step", proof
    return "perf.data-imbalance", f"the data of rank {rank} takes longer on any rank", proof


def _more_tokens(view: View, row: int, price: float) -> tuple[str, str, str] | None:
    """Experts that get more tokens than others."""
    tokens = view.series("expert_tokens")
    if tokens is None or float(np.median(tokens[row])) < 1.3 * float(np.median(tokens.mean(axis=0))):
        return None
    gap = excess(view.books, "compute", row)
    what = f"the experts of rank {view.trace.ranks[row].rank} get {_gap(tokens, row):.0f} tokens more a step"
    proof = f"arrival stamps and phase timers agree: {_ms(gap)} more to compute" if gap >= 0.5 * price else ""
    return "perf.expert-imbalance", what, proof


def _alone(view: View, row: int, cause: str, price: float) -> str:
    """What confirms that a straggler's own line is to blame."""
    if cause == "input":
        replay = view.window("memory-input")
        left = None if replay is None else float(np.median(replay.charged[row]))
        if left is not None and left < 0.5 * price:
            return f"on batches from memory it costs {_ms(left)} only"
        return ""
    solo = view.window("solo")
    if solo is not None:
        own = [sum(solo.line_s(name, r) for name in OWN) for r in range(view.rows)]
        more = own[row] - float(np.median([o for r, o in enumerate(own) if r != row]))
        return f"on its own, without peers, it takes {_ms(more)} longer than they do" if more >= 0.5 * price else ""
    if view.trace.job.parallel in ("data", "single"):
        return ""
    gap = excess(view.books, cause, row)
    return f"arrival stamps and phase timers agree ({_ms(gap)})" if gap >= 0.7 * price else ""


def _roaming(view: View) -> Iterator[Suspect]:
    """Lateness of changing ranks, where lines of the late rank explain it (waiting for a core does not count)."""
    charged = view.books.charged
    own = sum(view.books.lines[name] for name in OWN)
    assert isinstance(own, np.ndarray)
    late = charged.argmax(axis=0)
    at = np.arange(len(late))
    others = np.array([np.median(np.delete(own[:, c], late[c])) for c in at])
    explained = np.minimum(charged[late, at], np.clip(own[late, at] - others, 0.0, None))
    price = float(np.median(explained)) if np.median(explained) > 0 else float(explained.mean())
    if price < 0.5 * ROAMING * view.step_s:
        return
    solo = view.window("solo")
    proof = ""
    if solo is not None:
        alone = np.stack([solo.lines[name] for name in OWN]).sum(axis=0)
        spread = float(np.median(np.ptp(alone, axis=0))) if alone.shape[1] else 0.0
        proof = f"on their own, ranks differ by {_ms(spread)} in the same step" if spread >= 0.5 * price else ""
    what = f"ranks take turns in being late, and that costs {_ms(price)} a step"
    line = max(OWN, key=lambda name: _behind(view.books.lines[name], late))
    yield Suspect("perf.lateness-roams", what, price, ROAMING, None, proof, "one rank at a time", line=line)


def _behind(line: Table, late: Table) -> float:
    """Seconds by which a line of the late rank [step] exceeds that of the others, summed over the steps."""
    return float(sum(line[row, c] - np.median(np.delete(line[:, c], row)) for c, row in enumerate(late)))


ROAMING = 0.25
"""Share of the step above which lateness of changing ranks is a bottleneck: below it, it is the price of meeting."""


def _stage(view: View, share: float) -> Iterator[Suspect]:
    """A pipeline stage that computes longer than the others: all stages run at its pace."""
    gaps = [excess(view.books, "compute", row) for row in range(view.rows)]
    row = int(np.argmax(gaps))
    price = gaps[row]
    if price < 0.5 * share * view.step_s:
        return
    cpu = _gap(view.series("cpu_s"), row)
    proof = f"its CPU clock agrees: {_ms(cpu)} more a step" if cpu >= 0.5 * price else ""
    waits = view.books.lines["stage wait"] + view.books.lines["peer wait"]
    others = [r for r in range(view.rows) if r != row]
    waited = float(np.median(waits[others] - waits[row]))
    where = f"stage {view.trace.ranks[row].coords.get('pp', row)}"
    what = f"{where} (positional) computes {_ms(price)} longer than the others, which wait {_ms(waited)} more than it"
    last = view.trace.ranks[row].coords.get("pp", row) == view.rows - 1
    what += "; the last stage owns the head and the loss" if last else ""
    yield Suspect("perf.stage-imbalance", what, price, share, row, proof, "move a layer to another stage")
