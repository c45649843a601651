"""One step from the request to the last process: watches the ranks, decides when to end them, writes what it saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddaudit.errors import LaunchProblem
from ddaudit.evidence.launch import LaunchFacts, RankOutcome, RankState
from ddaudit.launch import kernel
from ddaudit.launch.blame import Seen, blame
from ddaudit.launch.link import Link
from ddaudit.launch.states import LivingState, state_between
from ddaudit.launch.text import main_thread_stack, own_frame, size, tail
from ddaudit.launch.trail import Trail
from ddaudit.worker import Order, WorkerExit

__all__ = ["Progress", "StepRun"]

TICK_S = 0.25
#: After a rank's failure the others get this long to fail by themselves: their errors are evidence, and gloo tells
#: peers within 0.1 s (measured), while NCCL would let them wait for minutes.
GRACE_S = 1.5
#: How long to watch a rank before calling it busy or stuck.
WATCH_S = 0.4
#: How long ranks may take to answer a report request. They need 20 ms on an idle machine, and one that never answers
#: (stuck with the interpreter's lock) costs this much; a starved one should still get its stack out.
REPORT_S = 2.0
#: What is kept free before the deadline for looking and reporting, at most a tenth of the timeout.
RESERVE_S = 1.0
#: From SIGKILL to the last process gone. A process in D state may take longer and is left to the kernel.
KILL_S = 10.0


@dataclass(frozen=True)
class Progress:
    """What a waiting terminal shows. ``steps`` holds the last recorded training step per rank, where there is one.

    ``waiting_for`` lists the running ranks, or those of them that are behind the others. ``phase`` is "starting" until
    the server is ready, "joining" while hosts are missing (``note`` names them), then "running". ``hosts`` names each
    rank's host where there are several.
    """

    step: str
    elapsed_s: float
    deadline_s: float
    waiting_for: list[int] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    phase: str = "running"
    hosts: Mapping[int, str] = field(default_factory=dict)
    note: str = ""


@dataclass
class _Watched:
    """One rank as the launcher knows it."""

    order: Order
    trail: Trail
    pid: int | None = None
    ended: dict[str, Any] | None = None
    finished: bool = False
    state: LivingState | None = None
    reports_before: int = 0
    stack_bytes_before: int = 0
    clock_offset_s: float = 0.0
    """What the host's wall clock is ahead of this one's."""

    @property
    def living(self) -> bool:
        return self.pid is not None and self.ended is None

    @property
    def well(self) -> bool:
        return self.ended is not None and self.finished and self.ended["code"] == 0

    @property
    def failed_at(self) -> float | None:
        """Time of a failure of its own making, on this host's wall clock: an error event's, else when the process was
        collected, or when its host was last heard of."""
        if self.ended is None or self.state is not None or self.well:
            return None
        if self.ended.get("lost"):
            return float(self.ended["t"])
        told = float(self.trail.error["t"]) if self.trail.error else float(self.ended["t"])
        return told - self.clock_offset_s


class StepRun:
    """Drives one step over a :class:`ServerLink`; :meth:`run` blocks until no process of it is left. ``by_host``: the
    run folder has one event file a host, not a rank."""

    def __init__(
        self,
        link: Link,
        orders: Sequence[Order],
        *,
        interrupted: Callable[[], bool],
        on_progress: Callable[[Progress], None],
        clock_offsets_s: Mapping[str, float] | None = None,
        by_host: bool = False,
    ) -> None:
        self._link = link
        self._orders = orders
        self._offsets = dict(clock_offsets_s or {})
        trails = Trail.of_hosts(orders) if by_host else {o.rank: Trail(o.events_path) for o in orders}
        self._ranks = {
            o.rank: _Watched(o, trails[o.rank], clock_offset_s=self._offsets.get(o.host, 0.0)) for o in orders
        }
        self._hosts = {o.rank: o.host for o in orders} if len({o.host for o in orders}) > 1 else {}
        self._interrupted = interrupted
        self._on_progress = on_progress
        self._timeout_s = orders[0].step.timeout_s
        self._began = time.monotonic()
        self._over = False
        self._problem: str | None = None
        self._first_failure: float | None = None
        self._progressing = False
        self._oom_before = kernel.oom_kills()

    def run(self) -> tuple[bool, bool]:
        """Runs the step; returns (timed out, interrupted)."""
        self._link.send("run", orders=[o.model_dump(mode="json", by_alias=True) for o in self._orders])
        # The last moments before the deadline belong to the reports, so that the step ends on time.
        give_up = self._began + self._timeout_s - min(RESERVE_S, 0.1 * self._timeout_s)
        shown = 0.0
        while not self._over:
            now = time.monotonic()
            if self._interrupted():
                self._stop(RESERVE_S)
                return False, True
            if now >= give_up:
                self._stop()
                return not all(w.well for w in self._ranks.values()), False
            failed = self._first_failure is not None and now >= self._first_failure + GRACE_S
            if failed or not self._orders[0].run_dir.is_dir():  # without its folder nothing of a step can be kept
                self._stop(REPORT_S if failed else 0.0)
                return False, False
            if now >= shown + TICK_S:
                shown = now
                self._show(now)
            self._pump(min(TICK_S, give_up - now))
        return False, False

    def _pump(self, timeout_s: float) -> None:
        for event in self._link.receive(max(0.0, timeout_s)):
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "over":
            self._over = True
        elif kind == "failed":
            self._problem = event["error"]
        elif kind in ("started", "finished", "ended"):
            rank = self._ranks[event["rank"]]
            if kind == "started":
                rank.pid = event["pid"]
            elif kind == "finished":
                rank.finished = True
                if self._hosts and all(w.finished for w in self._ranks.values()):
                    self._link.send("release")
            else:
                rank.ended = event
                rank.finished = event["finished"]
                if self._first_failure is None and not rank.well:
                    self._first_failure = time.monotonic()

    def _show(self, now: float) -> None:
        for rank in self._ranks.values():
            rank.trail.read()
        running = [r for r, w in self._ranks.items() if w.ended is None and not w.finished]
        steps = {r: w.trail.last_step for r, w in self._ranks.items() if w.trail.last_step is not None}
        at = {r: steps.get(r, -1) for r in running}
        behind = [r for r in running if at[r] == min(at.values())]
        self._on_progress(
            Progress(
                step=self._orders[0].step.id,
                elapsed_s=now - self._began,
                deadline_s=self._timeout_s,
                waiting_for=behind,
                steps=steps,
                hosts=self._hosts,
            )
        )

    def _stop(self, report_s: float = REPORT_S) -> None:
        """Looks at every living rank, asks each for its stack and position, then kills them all."""
        living = {r: w for r, w in self._ranks.items() if w.living}
        before = self._link.sample({r: w.pid for r, w in living.items() if w.pid})
        asked = {r: w.trail.reports for r, w in living.items()}
        self._link.send("where")
        self._wait(min(WATCH_S, 0.06 * self._timeout_s), lambda: False)
        after = self._link.sample({r: w.pid for r, w in living.items() if w.living and w.pid})
        for r, watched in living.items():
            if watched.living and watched.pid:
                watched.state = state_between(before.get(r), after.get(r))
                watched.trail.read()
                watched.reports_before = watched.trail.reports
                watched.stack_bytes_before = size(watched.order.stack_path)
        told = {r: w.trail.reports > asked[r] for r, w in living.items()}
        places = {r: w.trail.place(positions=told[r]) for r, w in living.items()}
        self._link.send("report")
        self._wait(report_s, lambda: all(self._answered(w) for w in living.values()))
        self._progressing = any(w.trail.place(positions=told[r]) != places[r] for r, w in living.items())
        self._link.send("kill")
        self._wait(KILL_S, lambda: False)
        if not self._over:
            raise LaunchProblem(
                "processes of the step survive SIGKILL: they are stuck in the kernel",
                where=self._orders[0].host,
                fix="look at `ps -eo pid,stat,wchan,args` for state D, and at the device or mount they wait for",
            )

    def _wait(self, seconds: float, done: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while not self._over and not done() and (left := until - time.monotonic()) > 0:
            self._pump(min(left, 0.05))

    @staticmethod
    def _answered(watched: _Watched) -> bool:
        if not watched.living or watched.state == "stopped":
            return True
        watched.trail.read()
        told = watched.trail.reports > watched.reports_before
        return told and size(watched.order.stack_path) > watched.stack_bytes_before

    def facts(self, *, timed_out: bool, interrupted: bool, server_s: float, preloaded: bool) -> LaunchFacts:
        """What became of the ranks.

        Raises:
            LaunchProblem: a rank could not be started at all.
        """
        if self._problem:
            raise LaunchProblem(self._problem, where=self._orders[0].host, fix="free memory or raise the process limit")
        for watched in self._ranks.values():
            watched.trail.read()
        # Ranks that still get on are slow, not stuck: positions taken one after another would accuse at random.
        slow = timed_out and self._progressing and not any(w.state == "stopped" for w in self._ranks.values())
        culprits = {} if interrupted or slow else blame([self._seen(w) for w in self._ranks.values()])
        oom_now = kernel.oom_kills()
        return LaunchFacts(
            world_size=len(self._orders),
            host=self._orders[0].host,
            folder=self._orders[0].folder,
            timeout_s=self._timeout_s,
            seconds=time.monotonic() - self._began,
            server_s=server_s,
            torch_preloaded=preloaded,
            timed_out=timed_out,
            interrupted=interrupted,
            progressing=slow,
            clock_offsets_s=self._offsets,
            oom_kills=None if self._oom_before is None or oom_now is None else max(0, oom_now - self._oom_before),
            ranks=tuple(self._outcome(w, culprits.get(w.order.rank)) for w in self._ranks.values()),
        )

    def _state(self, watched: _Watched) -> RankState:
        if watched.ended is None:
            return watched.state or "never-started"
        if watched.ended.get("lost"):
            return "host-lost"
        finished = watched.finished and watched.trail.ended
        if finished and (watched.ended["code"] == 0 or watched.state is not None):
            return "done"
        if watched.state is not None:
            return watched.state
        return "killed" if watched.ended["signal"] else "exited"

    @staticmethod
    def _main_stack(watched: _Watched) -> str:
        return main_thread_stack(tail(watched.order.stack_path), watched.trail.main_thread)

    def _seen(self, watched: _Watched) -> Seen:
        error = watched.trail.error
        ended = watched.ended or {}
        return Seen(
            rank=watched.order.rank,
            state=self._state(watched),
            failed_at=watched.failed_at,
            signal=ended.get("signal"),
            exit_code=ended.get("code"),
            host=watched.order.host,
            lost=ended.get("lost"),
            error_type=error["type"] if error else None,
            error=error["message"] if error else None,
            finished=watched.finished,
            phases=tuple(watched.trail.phases),
            groups=watched.trail.groups,
            answered=watched.trail.reports > watched.reports_before,
            main_stack=self._main_stack(watched),
        )

    def _outcome(self, watched: _Watched, why: str | None) -> RankOutcome:
        ended, trail = watched.ended or {}, watched.trail
        state = self._state(watched)
        group = max(trail.groups.values(), key=lambda g: g["enqueued"], default=None)
        return RankOutcome(
            rank=watched.order.rank,
            host=watched.order.host,
            pid=watched.pid,
            state=state,
            exit_code=ended.get("code"),
            signal=ended.get("signal"),
            killed_by_us=watched.state is not None,
            culprit=why is not None,
            why=why,
            problem=bool(trail.error and trail.error["kind"] == "problem"),
            error=_error_text(watched, state),
            last_event=trail.last_event,
            last_step=trail.last_step,
            collective_seq=group["enqueued"] if group else None,
            collective_op=group["op"] if group else None,
            collective_pending=group["enqueued"] > group["completed"] if group else None,
            stuck_at=own_frame(self._main_stack(watched)),
            stack=(trail.error or {}).get("traceback") or tail(watched.order.stack_path) or None,
            cpu_s=ended.get("cpu_s"),
            max_rss_bytes=ended.get("max_rss_bytes"),
        )


def _error_text(watched: _Watched, state: RankState) -> str | None:
    """One line on how the rank ended, from its own words where it left any."""
    if watched.ended and watched.ended.get("lost"):
        return str(watched.ended["lost"])
    if watched.trail.error and watched.trail.error["kind"] == "problem":
        return str(watched.trail.error["message"])
    if watched.trail.error:
        return f"{watched.trail.error['type']}: {watched.trail.error['message']}"
    if state == "exited" and watched.ended:
        if watched.ended["code"] == WorkerExit.NO_EVENTS:
            return "could not write to the run folder (full, read-only or gone)"
        return f"left with exit code {watched.ended['code']} without finishing"
    if state == "killed":
        last = tail(watched.order.log_path, 2_000).strip().splitlines()
        return last[-1][:400] if last else None
    return None
