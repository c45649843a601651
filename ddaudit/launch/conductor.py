"""Runs steps on several hosts: this one's own launcher, and the agents of the others through a :class:`Fleet`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ddaudit.errors import LaunchProblem
from ddaudit.launch.fleet import Fleet
from ddaudit.launch.link import Link, ServerGone, ServerLink
from ddaudit.launch.local import TRAINING, LocalLauncher
from ddaudit.launch.stall import answering
from ddaudit.launch.steprun import TICK_S, Progress
from ddaudit.runbook.model import PlannedStep

__all__ = ["FleetLauncher"]

#: How long a node that was lost may take to come back before the next step that needs it is given up.
REJOIN_S = 5.0


class FleetLauncher(LocalLauncher):
    """A :class:`LocalLauncher` whose ranks are spread over the hosts of a fleet, block by block: rank 0 is here."""

    by_host = True

    def __init__(
        self,
        run_dir: Path,
        fleet: Fleet,
        *,
        torch: bool,
        device: str = "cpu",
        preload: Sequence[str] = TRAINING,
    ) -> None:
        self._fleet = fleet
        self._join_until = time.monotonic() + fleet.join_timeout_s
        super().__init__(run_dir, torch=torch, device=device, preload=preload)
        self.host = fleet.host
        token = secrets.token_hex(16)
        self._mark = self.run_dir / f".shared-{token[:8]}"
        with answering(self.run_dir):
            self._mark.write_text(token, "ascii")
        fleet.open(
            self.run_dir,
            {
                "plan": (self.run_dir / "plan.json").read_text("utf-8"),
                "preload": list(self._preload),
                "run_dir": str(self.run_dir),
                "mark": self._mark.name,
                "token": token,
            },
        )

    def close(self) -> None:
        super().close()
        with suppress(OSError), answering(self.run_dir):
            self._mark.unlink(missing_ok=True)

    def _start_server(self) -> ServerLink:
        link = super()._start_server()
        self._fleet.attach(link, self._wake_read)
        return link

    def _drop_server(self) -> None:
        if self._link is not None:
            with suppress(ServerGone):
                self._fleet.send("kill")
        self._fleet.attach(None)
        super()._drop_server()

    def _joined(
        self, link: ServerLink, step: PlannedStep, on_progress: Callable[[Progress], None], everywhere: bool
    ) -> Link | None:
        wanted = self._nodes(step, everywhere)
        until = max(self._join_until, time.monotonic() + REJOIN_S)
        try:
            self._fleet.receive(0.0)
            while missing := self._fleet.missing(wanted):
                if self._interrupted:
                    return None
                if time.monotonic() > until:
                    raise LaunchProblem(self._absent(missing), where=self.host, fix="look at the output of that node")
                note = f"waiting for {self._named(missing)}"
                on_progress(Progress(step.id, 0.0, step.timeout_s, phase="joining", note=note))
                self._fleet.receive(TICK_S)
        except ServerGone as error:
            self._drop_server()
            raise LaunchProblem(str(error), where=self.host) from error
        self._join_until = 0.0
        self._refuse_unfit(wanted)
        return self._fleet

    def _nodes(self, step: PlannedStep, everywhere: bool) -> list[int]:
        if everywhere:
            return list(range(self._fleet.place.nnodes))
        return list(range(-(-step.nproc // self._per_node(step))))

    def _per_node(self, step: PlannedStep) -> int:
        """Ranks on a node: as many as were asked for, more where the step has more ranks than that makes room for."""
        place = self._fleet.place
        return max(place.ranks_per_node, -(-step.nproc // place.nnodes))

    def _placed(self, step: PlannedStep, everywhere: bool) -> list[str]:
        nodes = self._nodes(step, everywhere)
        names = [self._fleet.nodes[n].host if n and n in self._fleet.nodes else self.host for n in nodes]
        if everywhere:
            return names
        return [names[rank // self._per_node(step)] for rank in range(step.nproc)]

    def _clock_offsets_s(self) -> dict[str, float]:
        known = [n for n in self._fleet.nodes.values() if n.clock_offset_s is not None]
        return {n.host: round(n.clock_offset_s or 0.0, 6) for n in known}

    def _refuse_unfit(self, wanted: Sequence[int]) -> None:
        for node in (self._fleet.nodes[n] for n in wanted if n):
            missing = (node.ready or {}).get("missing", {})
            if "torch" in missing:
                raise LaunchProblem(f"torch cannot be imported: {missing['torch']}", where=node.host)
            if self.device == "cuda" and node.gpus < self._fleet.place.ranks_per_node:
                what = f"{node.gpus} GPU(s) for {self._fleet.place.ranks_per_node} ranks"
                raise LaunchProblem(what, where=node.host, fix="lower --nproc-per-node, or leave this node out")

    def _named(self, missing: Sequence[int]) -> str:
        """``node 2 (not here yet)``, with the host's name where it is known."""
        words = []
        for number in missing[:4]:
            node = self._fleet.nodes.get(number)
            why = "not here yet" if node is None else f"{node.host}: {node.lost or 'importing torch'}"
            words.append(f"node {number} ({why})")
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        return f"{', '.join(words)}{more} of {self._fleet.place.nnodes} nodes"

    def _absent(self, missing: Sequence[int]) -> str:
        here = [n.host for n in self._fleet.nodes.values() if n.usable]
        came = f"; here are {', '.join([self.host, *here])[:400]}"
        lost = any(n in self._fleet.nodes for n in missing)
        text = (
            "the step needs hosts that are gone"
            if lost
            else f"nodes did not come in {self._fleet.join_timeout_s:.0f} s"
        )
        return f"{text}: {self._named(missing)}{came}"
