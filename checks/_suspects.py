"""Suspects of a slow step: what each costs by the books, and what the window without it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddaudit.api import window_code

from ._arrays import carriers
from ._windows import SIGMAS, Saving, View

__all__ = ["Suspect", "suspects"]


@dataclass(frozen=True)
class Suspect:
    """One possible cause. ``price_s`` is what removing it would save per step; ``row`` the guilty rank's row, None
    where all are alike. ``proof`` says what confirmed it, empty where nothing did; ``next`` is the probe that would.
    ``share`` is the least share of the step from which it is a bottleneck. A ``specific`` cause explains a general one
    of about its price (garbage collection explains lateness). ``line`` is the line of the books by which a late rank is
    late; a suspect that ``covers`` a line costs all ranks that line, and lateness by it is a part of that."""

    id: str
    what: str
    price_s: float
    share: float
    row: int | None = None
    proof: str = ""
    next: str = ""
    specific: bool = False
    line: str = ""
    covers: str = ""


def suspects(view: View, shares: dict[str, float]) -> list[Suspect]:
    """All suspects of a run; ``shares`` maps input, communication, host, straggler and core to the least share of the
    step that counts."""
    found = [*_settings(view), *_memory(view), *_collector(view), *_cores(view, shares["core"])]
    found += [*_lateness(view, shares["straggler"], shares["core"]), *_input(view, shares["input"])]
    found += [*_communication(view, shares["communication"]), *_host(view, shares["host"])]
    covered = {s.covers for s in found if s.covers}
    return sorted((s for s in found if s.line not in covered), key=lambda s: -s.price_s)


WORTH = 0.1
"""Least share of the step for causes without a limit of their own."""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _without(saving: Saving | None, what: str) -> str:
    """The proof by an A/B window."""
    return "" if saving is None else f"steps {what} are {_ms(saving.seconds)} shorter (+- {_ms(saving.error)})"


def _settings(view: View) -> Iterator[Suspect]:
    """Settings of the loop that cost collectives or threads."""
    rounds, needed = view.typical("grad_syncs", 0), view.trace.job.grad_syncs_per_step
    if needed and rounds > needed + 1e-9:
        saving = _saving(view, "sync-once", "wire")
        yield _by_window(
            "sync.every-micro-step",
            f"gradients are synchronised {rounds:g} times where {needed:g} is needed",
            saving,
            "that synchronise once",
            "a window that synchronises with the last micro-batch only",
        )
    calls, usual = view.typical("extra_collectives", 0), 4 * max(1, view.trace.job.accumulation or 1)
    if calls > usual:
        yield _by_window(
            "perf.forced-sync",
            f"the loop makes the ranks meet {calls:g} times a step for its own records",
            _saving(view, "no-logging", "active"),
            "without these collectives",
            "a window without the loop's own collectives",
        )
    yield from _threads(view)


PRECISE = 0.1
"""Standard error of a saving, as a share of it, up to which the saving is a price by itself."""


def _saving(view: View, window: str, part: str) -> Saving | None:
    """What taking collectives out saves: they also cost copies and meetings, which shows in whole steps. Where whole
    steps are too noisy to tell, only the ``part`` of them that is less so."""
    whole = view.saving(window, length="whole")
    return whole if whole is not None and whole.error < PRECISE * whole.seconds else view.saving(window, length=part)


def _by_window(id: str, what: str, saving: Saving | None, proof: str, next: str, row: int | None = None) -> Suspect:
    """A specific suspect that only an A/B can price."""
    price = 0.0 if saving is None else max(0.0, saving.seconds)
    proven = _without(saving, proof) if saving is not None and saving.clear else ""
    return Suspect(id, what, price, WORTH, row, proven, next, specific=True)


def _threads(view: View) -> Iterator[Suspect]:
    """More threads than cores: those of the ranks, or those of their workers."""
    masks = view.series("core_mask")
    cores = 1 if masks is None else bin(int(np.bitwise_or.reduce(masks[:, -1].astype(np.int64)))).count("1")
    threads = sum(view.typical("threads", row) for row in range(view.rows))
    workers = sum(view.typical("workers", row) for row in range(view.rows))
    if threads <= cores + THREADS_AT_REST * view.rows + THREADS_OF_WORKER * workers:
        return
    what = f"{threads:g} threads of {view.rows} rank(s) and their workers share {cores} cores"
    alone, idle = view.saving("one-thread", length="whole"), view.saving("idle-workers", length="whole")
    if workers and idle is not None and idle.clear:
        yield _by_window("perf.cpu-oversubscribed", what, idle, "while the workers stand still", "")
        return
    yield _by_window("perf.cpu-oversubscribed", what, alone, "on one thread a rank", "a window with one thread a rank")


THREADS_AT_REST = 8
"""Threads that a rank has anyway: the interpreter, the backend's, the watcher's and autograd's."""
THREADS_OF_WORKER = 4
"""Threads that a loader worker has anyway: its own, its queue's, and an operator's or two."""

PRESSURE_FAULTS = 1000.0


def _memory(view: View) -> Iterator[Suspect]:
    """Memory that is taken from the system and given back in every step."""
    faults = max(view.typical("minor_faults", row) for row in range(view.rows))
    if faults > PRESSURE_FAULTS:
        what = f"the kernel provides {faults:.0f} fresh pages a step"
        yield _by_window(
            "perf.memory-stall",
            what,
            view.saving("keep-memory", length="own"),
            "that keep their memory",
            "a window that keeps it",
        )


def _collector(view: View) -> Iterator[Suspect]:
    """Pauses of the garbage collector: in a synchronous job they cost their union over the ranks."""
    pauses = view.series("gc_s")
    if pauses is None or view.rows < 2:
        return
    every, together = float(pauses.sum(axis=0).mean()), float(pauses.max(axis=0).mean())
    apart = (
        float((pauses.min(axis=0) < 0.5 * pauses.max(axis=0))[pauses.max(axis=0) > LEAST_PAUSE_S].mean())
        if (pauses.max() > LEAST_PAUSE_S)
        else 0.0
    )
    price = every if apart > 0.5 else together
    rare = float(np.median(pauses.max(axis=0))) < 0.5 * together
    if price < WORTH * view.step_s:
        return
    saving = view.saving("no-gc", rare=rare, length="own")
    proof = _without(saving, "without collection") if saving is not None and saving.agrees(price) else ""
    what = f"garbage collection pauses ranks for {_ms(price)} a step"
    id = "perf.gc-uncoordinated" if apart > 0.5 else "perf.gc-pauses"
    yield Suspect(id, what, price, WORTH, None, proof, "a window without collection", specific=True)


LEAST_PAUSE_S = 0.002


def _cores(view: View, share: float) -> Iterator[Suspect]:
    """Others on the cores of all ranks."""
    waits = [view.books.line_s("waiting for a core", row) for row in range(view.rows)]
    others = min(view.others_cores(row) for row in range(view.rows))
    if min(waits) < share * view.step_s or others < OTHERS:
        return
    what = f"others keep {others:.1f} of the ranks' cores busy, and every rank waits {_ms(min(waits))} for a core"
    solo = view.window("solo")
    alone = 0.0 if solo is None else min(solo.line_s("waiting for a core", row) for row in range(view.rows))
    proof = f"a rank on its own waits {_ms(alone)} too" if alone > 0.25 * min(waits) else ""
    yield Suspect("perf.core-contended", what, max(waits), share, None, proof, "one rank at a time", specific=True)


OTHERS = 0.5


def _input(view: View, share: float) -> Iterator[Suspect]:
    """Waiting for data that all ranks have, in the same steps or in different ones: where ranks wait in different
    steps, each waits for the others too, and only the window says what all of it costs."""
    waits = np.nan_to_num(view.books.lines["input"])
    waited, each = waits.min(axis=0), waits.mean(axis=1)
    rare = float(np.median(waited)) < 0.5 * float(waited.mean())
    price = float(waited.mean()) if rare else view.shared("input")
    everyone = float(each.min()) >= max(EVERYONE * float(each.max()), 0.5 * share * view.step_s)
    if price < 0.5 * (WORTH if rare else share) * view.step_s and not everyone:
        return
    saving = view.saving("memory-input", rare=rare, length="own")
    proof = _without(saving, "on batches from memory") if saving is not None and saving.agrees(price) else ""
    covers = "input" if everyone and proof else ""
    if covers and saving is not None:
        price = max(price, saving.seconds)
    id, what = _loader(view)
    restarts = _after_restarts(view) if id == "perf.worker-respawn" else ""
    if restarts:  # all restart at once, and the slowest restart is what the others wait for
        longest = waits.max(axis=0)
        price = max(price, float(longest.mean() - np.median(longest)))
    text = f"every rank waits for data, and that costs {_ms(price)} a step; {what}"
    least = WORTH if restarts else min(share, SOME) if rare else share
    yield Suspect(id, text, price, least, None, restarts or proof, "batches from memory", covers=covers)


EVERYONE = 1 / 3
"""All ranks wait where the one that waits least waits a third of what the one that waits most does: workers that share
cores do not get equal shares of them."""


def _after_restarts(view: View) -> str:
    """The proof that the run itself holds: steps right after a restart of the workers against the others."""
    waits, started, _ = _reads(view)
    after, others = waits[started], waits[~started]
    if len(after) < LEAST_RESTARTS or len(others) < LEAST_RESTARTS:
        return ""
    error = float(np.hypot(np.std(after, ddof=1) / len(after) ** 0.5, np.std(others, ddof=1) / len(others) ** 0.5))
    if float(after.mean() - others.mean()) < SIGMAS * error:
        return ""
    told = f"{_ms(float(after.mean()))} for data, the {len(others)} others {_ms(float(others.mean()))}"
    return f"the {len(after)} steps right after a restart wait {told}"


LEAST_RESTARTS = 3


SOME = 0.25
"""Share of the step above which waiting that comes now and then is a bottleneck."""


def _loader(view: View) -> tuple[str, str]:
    """Which kind of slow loader: worked out from all steps that read, whatever their window."""
    workers = max(view.typical("workers", row) for row in range(view.rows))
    if not workers:
        return "perf.input-bound", "the rank itself reads (num_workers = 0)"
    waits, started, turns = _reads(view)
    total = float(waits.sum())
    if started.any() and float(waits[started].sum()) >= MOST * total and not started.all():
        return "perf.worker-respawn", "nearly all of it right after loader workers were started anew"
    if workers >= 2:
        by_turn = [float(waits[turns % int(workers) == turn].sum()) for turn in range(int(workers))]
        if max(by_turn) >= MOST * total:
            return "perf.bursty-workers", f"nearly all of it for the batches of one of {workers:g} workers"
    busy = max(view.rate("workers_cpu_s", row) for row in range(view.rows)) / workers
    if busy > 0.5:
        return "perf.input-bound", f"its {workers:g} worker(s) compute all the time ({busy:.0%} of a core each)"
    return "perf.input-bound", f"its {workers:g} worker(s) wait themselves ({busy:.0%} of a core each): storage"


MOST = 0.7


def _reads(view: View) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the first rank's steps that read while the clock ran: seconds waited, whether workers had been started, and
    the number of the read."""
    codes, waits = view.trace.series("window"), view.trace.series("input_s")
    started = view.trace.series("workers_started")
    assert codes is not None and waits is not None
    unread = [window_code("idle-workers")]
    replayed = [window_code(n) for n in ("memory-input", "swap", "idle-workers")]
    kept_waits, kept_started, turns, turn = [], [], [], 0
    previous = 0
    for column in range(codes.shape[1]):
        code = int(codes[0, column]) if np.isfinite(codes[0, column]) else 0
        nearby = [int(c) for c in codes[0, column : column + 2] if np.isfinite(c)]
        effective = code if code >= 0 else (nearby[1] if len(nearby) > 1 else 0)
        if effective in unread:
            continue
        turn += 1
        if effective in replayed or column < 2 or previous in replayed:
            previous = effective
            continue
        previous = effective
        kept_waits.append(float(waits[0, column]))
        kept_started.append(bool(started is not None and started[0, column] > 0))
        turns.append(turn)
    return np.nan_to_num(np.array(kept_waits)), np.array(kept_started), np.array(turns)


def _communication(view: View, share: float) -> Iterator[Suspect]:
    """The wire itself: what is left of waiting in collectives once waiting for peers is taken out."""
    if not view.books.split:
        return
    price = view.shared("communication")
    if price < 0.5 * share * view.step_s:
        return
    saving = view.saving("no-sync")
    proof = _without(saving, "without collectives") if saving is not None and saving.agrees(price) else ""
    what = f"collectives block every rank for {_ms(price)} a step after the last has come{carriers(view.trace)}"
    yield Suspect("perf.communication-bound", what, price, share, None, proof, "`collectives` on the same ranks")


def _host(view: View, share: float) -> Iterator[Suspect]:
    """Work of the loop itself before it launches anything, on all ranks."""
    price = view.shared("host")
    if price < 0.5 * share * view.step_s:
        return
    solo = view.window("solo")
    alone = 0.0 if solo is None else min(solo.line_s("host", row) for row in range(view.rows))
    proof = f"a rank on its own spends {_ms(alone)} on it too" if alone >= 0.5 * price else ""
    what = f"every rank works {_ms(price)} before it launches anything"
    yield Suspect("perf.host-bound", what, price, share, None, proof, "one rank at a time")


def _lateness(view: View, share: float, core: float) -> Iterator[Suspect]:
    """Waiting for peers, charged to the rank that came last."""
    from ._lateness import lateness

    yield from lateness(view, share, core)
