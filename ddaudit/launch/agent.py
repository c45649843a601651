"""The agent of a node: meets the conductor, forks ranks with this host's own launcher, and ships what they wrote.

It decides nothing. Ranks die with it: when the conductor is gone, so is the server they were forked from.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ddaudit import __version__
from ddaudit.errors import Exit, LaunchProblem
from ddaudit.launch.link import ServerGone, ServerLink
from ddaudit.launch.local import host_name
from ddaudit.launch.place import Place
from ddaudit.launch.process import catching
from ddaudit.launch.shipping import Shipper
from ddaudit.launch.spool import Spool, recover, tidy
from ddaudit.launch.stall import answering
from ddaudit.launch.states import sample
from ddaudit.launch.wire import Channel, Lost
from ddaudit.network import interface_of
from ddaudit.redact import known_secrets, learn, secrets_of

__all__ = ["Agent"]

RETRY_S = 0.3
TICK_S = 0.1
#: After TERM the conductor ends the run in order; schedulers send KILL 30 s after it, so the agent leaves before.
GRACE_S = 25.0
#: Schedulers send TERM for the step and for the job: those that come together are one.
TOGETHER_S = 5.0
#: A conductor that says nothing this long is stopped or stuck. It is busy, and silent, while it judges a step, which
#: takes a minute for thousands of ranks; one that is dead or cut off is noticed by TCP, much earlier.
SILENCE_S = 600.0


class Agent:
    """One node's agent. :meth:`serve` returns when the run is over."""

    def __init__(self, place: Place, *, key: str, gpus: int, join_timeout_s: float) -> None:
        self._place, self._key, self._gpus, self._join_timeout_s = place, key, gpus, join_timeout_s
        tidy()
        self._spool = Spool.make("agent")
        self._root = self._spool.root
        self._run_dir: Path | None = None
        """The conductor's run folder, where this host sees it too."""
        self._whole = True
        """False when the conductor could not keep all that it was sent."""
        self._channel: Channel | None = None
        self._server: ServerLink | None = None
        self._shipper: Shipper | None = None
        self._welcome: Mapping[str, Any] = {}
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._leave_at: float | None = None
        self._heard_at = time.monotonic()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> int:
        """Obeys the conductor to the end of the run; returns this process's exit code.

        Raises:
            LaunchProblem: no conductor came, it refused this node, or it was lost. What ranks wrote is kept then.
        """
        done = False
        try:
            with catching(self._on_signal):
                code = self._obey()
            done = code == Exit.PASS and self._whole
        finally:
            self._leave_spool(done=done)
        return code

    def _leave_spool(self, *, done: bool = False) -> bool:
        """Ends the ranks. What the conductor may not have got goes to the run folder, where this host sees it and
        nobody holds it; else it stays. True when it stays. ``done``: the conductor has all."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if not self._spool.mine:
            return self._spool.path.is_dir()
        if done or self._spool.empty or self._handed_over():
            self._spool.remove()
            return False
        self._spool.close()
        return True

    def _handed_over(self) -> bool:
        return self._run_dir is not None and self._spool.hand_over(self._run_dir)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        with suppress(OSError):
            os.write(self._wake_write, b"s")

    def _obey(self) -> int:
        self._channel = self._join()
        self._heard_at = time.monotonic()
        self._selector.register(self._channel, selectors.EVENT_READ, "conductor")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        try:
            while True:
                code = self._turn()
                if code is not None:
                    return code
        except Lost as lost:
            if self._was_sent_home():
                return int(Exit.PASS)
            kept = f"; what its ranks wrote is in {self._spool.root}" if self._leave_spool() else ""
            raise LaunchProblem(
                f"the conductor at {self._place.host} was lost: {lost}{kept}",
                where=host_name(),
                fix="`ddaudit report RUN` on the conductor's host reads what came; `--resume RUN` goes on",
            ) from None

    def _turn(self) -> int | None:
        """One round: what the conductor says, what the ranks do, what the files gained. Returns the exit code at the
        end of the run."""
        for key, _ in self._selector.select(TICK_S if self._shipper else 1.0):
            if key.data == "conductor":
                assert self._channel is not None
                self._heard_at = time.monotonic()
                for message, _ in self._channel.receive():
                    if self._ends(message):
                        return int(Exit.PASS)
                    self._do(message)
            elif key.data == "server":
                self._pass_on()
            else:
                os.read(self._wake_read, 4096)
        self._tell_signals()
        if self._shipper is not None:
            self._shipper.ship()
        now = time.monotonic()
        if self._leave_at is not None and now > self._leave_at:
            return int(Exit.TERMINATED)
        if now > self._heard_at + SILENCE_S:
            why = f"nothing was heard of it for {SILENCE_S:.0f} s"
            self._say({"event": "left", "why": why})  # should it wake, it must not take this host for lost
            raise Lost(why)
        return None

    def _ends(self, message: Mapping[str, Any]) -> bool:
        self._whole = bool(message.get("whole", True))
        return message.get("op") == "end"

    def _was_sent_home(self) -> bool:
        """True when the conductor ended the run before it hung up, and a word of ours to it came too late."""
        assert self._channel is not None
        with suppress(Lost):
            return any(self._ends(message) for message, _ in self._channel.receive())
        return False

    def _tell_signals(self) -> None:
        for number in self._signals:
            now = time.monotonic()
            if self._leave_at is None:
                self._leave_at = now + GRACE_S
                self._say({"event": "signal", "number": int(number)})
            elif number == signal.SIGINT or now - (self._leave_at - GRACE_S) > TOGETHER_S:
                self._leave_at = 0.0  # asked twice: at once
        self._signals.clear()

    def _say(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        assert self._channel is not None
        self._channel.send(message, payload)

    def _join(self) -> Channel:
        """Connects until the conductor is there, and says who this is."""
        until = time.monotonic() + self._join_timeout_s
        host, port = self._endpoint(until)
        while True:
            if self._signals:
                raise LaunchProblem("ended by a signal before the run began", where=host_name())
            try:
                channel = Channel(socket.create_connection((host, port), timeout=5.0))
                break
            except OSError as error:
                if time.monotonic() > until:
                    what = f"no conductor at {host}:{port} within {self._join_timeout_s:.0f} s"
                    reason = error.strerror or str(error)
                    raise LaunchProblem(
                        f"{what} ({reason})", where=host_name(), fix="look at node 0's output"
                    ) from None
                time.sleep(RETRY_S)
        hello = {"node": self._place.node_rank, "host": host_name(), "gpus": self._gpus}
        channel.send({"event": "hello", "key": self._key, "version": __version__, "pid": os.getpid(), **hello})
        return channel

    def _endpoint(self, until: float) -> tuple[str, int]:
        if self._place.meeting is None:
            return self._place.host, self._place.port
        from ddaudit.launch.torchstore import read_endpoint

        return read_endpoint(self._place, self._key, max(1.0, until - time.monotonic()))

    def _do(self, message: Mapping[str, Any]) -> None:
        op = message.get("op")
        if op == "ping":
            self._say({"event": "pong", "sent": message["sent"], "t": time.time()})
        elif op == "welcome":
            self._prepare(message)
        elif op == "refuse":
            raise LaunchProblem(f"the conductor refused this node: {message['why']}", where=host_name())
        elif op == "run":
            self._run(message)
        elif op == "sample":
            found = {r: sample(int(pid)) for r, pid in message["pids"].items()}
            self._say({"event": "sample", "samples": {r: vars(s) if s else None for r, s in found.items()}})
        elif op in ("where", "report", "release", "kill") and self._server is not None:
            self._to_server(op)

    def _prepare(self, welcome: Mapping[str, Any]) -> None:
        """Makes this node's own run folder and starts its server."""
        self._welcome = welcome
        for part in ("events", "logs", "scratch"):
            (self._root / part).mkdir(parents=True, exist_ok=True)
        (self._root / "plan.json").write_text(welcome["plan"], encoding="utf-8")
        self._run_dir = self._shared()
        if self._run_dir is not None:
            self._spool.belong(self._run_dir)
            recover(self._run_dir, locked=False)
        self._server = ServerLink(self._root / "logs" / "launcher.log", preload=welcome["preload"])
        self._selector.register(self._server.fileno(), selectors.EVENT_READ, "server")

    def _shared(self) -> Path | None:
        """The conductor's run folder, where this node sees it too."""
        folder = Path(self._welcome["run_dir"])
        try:
            with answering(folder):
                seen = (folder / self._welcome["mark"]).read_text("ascii")
        except (OSError, ValueError):
            return None
        return folder if seen == self._welcome["token"] else None

    def _run(self, message: Mapping[str, Any]) -> None:
        assert self._channel is not None and self._server is not None
        learn(secrets_of(os.environ, sys.argv, [o["step"]["params"] for o in message["orders"]]))
        changed = {
            "run_dir": str(self._root),
            "plan": str(self._root / "plan.json"),
            "host": self._welcome["host"],
            "deadline": time.monotonic() + float(message["remaining_s"]),
            "secrets": known_secrets(),
            "scratch_root": str(self._run_dir) if self._run_dir else None,
        }
        orders = [{**order, **changed} for order in message["orders"]]
        store = {"host": self._channel.peer_address, "port": message["port"]}
        store["interface"] = interface_of(self._channel.own_address)
        self._shipper = Shipper(self._root, orders[0]["folder"], self._say)
        self._to_server("run", orders=orders, store=store, hold=True)

    def _to_server(self, op: str, **fields: Any) -> None:
        assert self._server is not None
        try:
            self._server.send(op, **fields)
        except ServerGone as gone:
            raise LaunchProblem(str(gone), where=host_name()) from gone

    def _pass_on(self) -> None:
        """Sends the server's events on, each behind what the ranks had written by then."""
        assert self._server is not None
        try:
            events = self._server.read()
        except ServerGone as gone:
            raise LaunchProblem(str(gone), where=host_name()) from gone
        if self._shipper is not None:
            self._shipper.ship()
        for event in events:
            self._say(event)
            if event["event"] == "over":
                self._shipper = None
