"""The conductor's end of a run over several hosts: the other nodes' agents, as one link that a step is driven over."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddaudit import __version__
from ddaudit.errors import LaunchProblem
from ddaudit.launch.home import Home
from ddaudit.launch.link import ServerLink
from ddaudit.launch.node import Node, unique_name
from ddaudit.launch.place import Place
from ddaudit.launch.shipping import Keeper
from ddaudit.launch.states import Sample
from ddaudit.launch.wire import Channel, Lost, listen
from ddaudit.network import interface_of

__all__ = ["Fleet", "Welcome"]

PING_S = 1.0
#: How long agents may take to look at their ranks' processes.
SAMPLE_S = 1.0
#: How long a connection may take to say who it is.
HELLO_S = 10.0

Welcome = Mapping[str, Any]


class Fleet:
    """Listens for the agents of nodes 1 to n-1 and speaks with them and with this host's own server.

    It is a :class:`~ddaudit.launch.link.Link`: ``send`` goes to every node that has a part in the running step, and
    ``receive`` gives the events of all. Of a node that hangs up, or says nothing for ``silence_s``, every rank is told
    as ended, with the reason under ``lost``.
    """

    def __init__(
        self, place: Place, *, key: str, host: str, silence_s: float = 15.0, join_timeout_s: float = 600.0
    ) -> None:
        self.place, self.key, self.silence_s, self.join_timeout_s = place, key, silence_s, join_timeout_s
        self.host = host
        self.nodes: dict[int, Node] = {}
        self.on_signal: Callable[[int], None] = lambda number: None
        self._strangers: dict[Channel, float] = {}
        self._welcome: Welcome | None = None
        self._run_dir = Path()
        self._keeper: Keeper | None = None
        self._home: Home | None = None
        self._local: ServerLink | None = None
        self._pending: list[dict[str, Any]] = []
        self._later: dict[int, list[dict[str, Any]]] = {}
        self._remaining_until = 0.0
        self._local_over = self._told_over = True
        self._next_ping = 0.0
        self._whole = True
        self._left: str | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = listen(place.host, 0 if place.meeting else place.port)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def open(self, run_dir: Path, welcome: Welcome) -> None:
        """Lets agents in: each is sent ``welcome``, and its files go to ``run_dir``."""
        self._run_dir, self._welcome = run_dir, welcome
        self._keeper = Keeper(run_dir)
        self._home = Home(run_dir, lambda message, piece: self._keep(self.host, message, piece))
        for node in self.nodes.values():
            self._greet(node)

    def attach(self, local: ServerLink | None, wake: int | None = None) -> None:
        """Sets this host's own server, or takes it away; ``wake`` is a pipe that ends :meth:`receive` early."""
        for fd in [key.fileobj for key in self._selector.get_map().values() if key.data == "local"]:
            self._selector.unregister(fd)
        self._local = local
        if local is not None:
            self._selector.register(local.fileno(), selectors.EVENT_READ, "local")
        if wake is not None and wake not in self._selector.get_map():
            self._selector.register(wake, selectors.EVENT_READ, "wake")

    def missing(self, nodes: Sequence[int]) -> list[int]:
        """Of ``nodes``, those that are not ready: not here, lost, or still importing torch."""
        return [n for n in nodes if n and (n not in self.nodes or not self.nodes[n].usable)]

    def send(self, op: str, **fields: Any) -> None:
        """Passes a request on. ``run`` starts on this host, where all ranks meet; the others get it with the port."""
        if op == "run":
            self._run(fields["orders"])
            return
        if self._local is not None:
            self._local.send(op, **fields)
        for node in self.nodes.values():
            if node.usable and not node.over:
                self._tell(node, {"op": op, **fields})

    def _run(self, orders: Sequence[Mapping[str, Any]]) -> None:
        hosts = {node.host: node for node in self.nodes.values()}
        mine: list[Mapping[str, Any]] = [o for o in orders if o["host"] == self.host]
        self._later = {n.rank: [dict(o) for o in orders if o["host"] == h] for h, n in hosts.items()}
        self._later = {rank: theirs for rank, theirs in self._later.items() if theirs}
        self._remaining_until = float(orders[0]["deadline"])
        self._local_over, self._told_over = not mine, False
        for number, theirs in self._later.items():
            self.nodes[number].begin([o["rank"] for o in theirs])
        assert self._local is not None and self._home is not None and mine, "rank 0 is on the conductor's host"
        mine = list(self._home.orders(mine))
        if not self._later:
            self._local.send("run", orders=mine)
            return
        address = self.nodes[min(self._later)].channel.own_address
        self._local.send("run", orders=mine, hold=True, bind=address, interface=interface_of(address))

    def _start_others(self, port: int) -> None:
        remaining_s = self._remaining_until - time.monotonic()
        for number, orders in self._later.items():
            told = {"op": "run", "orders": orders, "port": port, "remaining_s": remaining_s}
            if self.nodes[number].usable:
                self._tell(self.nodes[number], told)
        self._later = {}

    def receive(self, timeout_s: float) -> list[dict[str, Any]]:
        """Events of all hosts that have arrived; waits up to ``timeout_s`` for the first.

        Raises:
            ServerGone: this host's own server died.
            LaunchProblem: hosts left while this process was stopped, and are not to blame.
        """
        self._tend()
        for key, _ in self._selector.select(0.0 if self._pending else max(0.0, min(timeout_s, PING_S))):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data == "wake":
                os.read(key.fd, 4096)
            elif key.data == "local" and self._local is not None:
                events = self._local.read()
                self._ship_own()
                for event in events:
                    self._take_local(event)
            elif isinstance(key.data, Node):
                self._hear(key.data)
            elif isinstance(key.data, Channel):
                self._meet(key.data)
        self._ship_own()
        self._check_over()
        told, self._pending = self._pending, []
        if self._left is not None:
            said, self._left = self._left, None
            raise LaunchProblem(said, where=self.host)
        return told

    def _ship_own(self) -> None:
        if self._home is not None:
            self._home.ship()

    def sample(self, pids: Mapping[int, int]) -> dict[int, Sample | None]:
        """Looks once at the process of each rank, on all hosts; a host that does not answer in time is left out."""
        asked: list[Node] = []
        for node in self.nodes.values():
            if theirs := {str(r): pids[r] for r in node.ranks if r in pids}:
                node.samples = None
                self._tell(node, {"op": "sample", "pids": theirs})
                asked.append(node)
        remote = {r for node in asked for r in node.ranks}
        own = {r: pid for r, pid in pids.items() if r not in remote}
        found = self._local.sample(own) if self._local is not None else {}
        until, kept = time.monotonic() + SAMPLE_S, []
        while any(n.samples is None and n.usable for n in asked) and time.monotonic() < until:
            kept += self.receive(0.05)
        self._pending = kept + self._pending
        return found | {r: s for node in asked for r, s in (node.samples or {}).items()}

    def _take_local(self, event: dict[str, Any]) -> None:
        if event["event"] == "meeting":
            self._start_others(event["port"])
        elif event["event"] == "over":
            self._local_over = True
        else:
            self._pending.append(event)

    def _check_over(self) -> None:
        if not self._told_over and self._local_over and all(n.over for n in self.nodes.values()):
            self._told_over = True
            self._pending.append({"event": "over", "t": time.time()})

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it hung up again
        channel = Channel(connection)
        self._strangers[channel] = time.monotonic()
        self._selector.register(channel, selectors.EVENT_READ, channel)

    def _meet(self, channel: Channel) -> None:
        """Reads what a new connection says it is."""
        try:
            frames = channel.receive()
        except Lost:
            self._shut(channel)
            return
        if not frames:
            return
        hello, _ = frames[0]
        why = self._refuse(hello)
        if why is not None:
            with suppress(Lost):
                channel.send({"op": "refuse", "why": why})
            self._shut(channel)
            return
        del self._strangers[channel]
        self._selector.unregister(channel)
        if (old := self.nodes.get(hello["node"])) is not None:
            self._lose(old, "its agent came anew")
        taken = {self.host, *(n.host for n in self.nodes.values() if n.lost is None)}
        node = Node(hello["node"], unique_name(hello["host"], taken), channel, int(hello["gpus"]))
        self.nodes[node.rank] = node
        self._selector.register(channel, selectors.EVENT_READ, node)
        if self._welcome is not None:
            self._greet(node)

    def _refuse(self, hello: Mapping[str, Any]) -> str | None:
        node, host = hello.get("node"), hello.get("host")
        if hello.get("event") != "hello" or not isinstance(node, int) or not isinstance(host, str):
            return "it does not speak ddaudit's protocol"
        if hello.get("key") != self.key:
            return f"another run meets here ({self.key!r}, not {hello.get('key')!r})"
        if hello.get("version") != __version__:
            return f"the conductor runs ddaudit {__version__}, this node {hello.get('version')}"
        if not 1 <= node < self.place.nnodes:
            return f"node rank {node} of {self.place.nnodes} nodes"
        if node in self.nodes and self.nodes[node].usable:
            return f"node {node} is here already, as host {self.nodes[node].host}"
        return None

    def _greet(self, node: Node) -> None:
        assert self._welcome is not None
        self._tell(node, {"op": "welcome", "host": node.host, **self._welcome})
        self._tell(node, {"op": "ping", "sent": time.monotonic()})  # its clock is known before its first step

    def _hear(self, node: Node) -> None:
        try:
            for message, payload in node.channel.receive():
                self._take(node, message, payload)
        except Lost as lost:
            self._lose(node, str(lost))
        except (KeyError, TypeError, ValueError):
            self._lose(node, "it does not speak ddaudit's protocol")

    def _take(self, node: Node, message: dict[str, Any], payload: bytes) -> None:
        node.heard()
        kind = message["event"]
        if kind == "file":
            self._keep(node.host, message, payload)
        elif kind == "pong":
            node.measure_clock(message)
        elif kind == "sample":
            node.samples = {int(r): Sample(**s) if s else None for r, s in message["samples"].items()}
        elif kind == "ready":
            node.ready = message
        elif kind == "signal":
            self.on_signal(int(message["number"]))
        elif kind == "over":
            node.over = True
        elif kind == "left":
            self._left = f"{node.host} left this run, which was stopped or stuck: {message['why']}"
            self._lose(node, self._left)
        elif kind == "failed":
            self._pending.append({**message, "error": f"{node.host}: {message['error']}"})
        elif kind in ("started", "finished", "ended") and int(message["rank"]) in node.ranks:
            node.note(message)
            self._pending.append(message)

    def _keep(self, host: str, message: Mapping[str, Any], payload: bytes) -> None:
        assert self._keeper is not None, "agents are let in when the run folder is known"
        try:
            self._keeper.keep(host, message, payload)
        except OSError as error:
            self._whole = False
            said = f"cannot write to the run folder: {error.strerror}"
            raise LaunchProblem(said, where=str(self._run_dir)) from error

    def _tend(self) -> None:
        """Pings, and gives up nodes that are silent and connections that never said who they are."""
        now = time.monotonic()
        if now < self._next_ping:
            return
        self._next_ping = now + PING_S
        for node in [n for n in self.nodes.values() if n.lost is None]:
            if node.silent_s > self.silence_s and not self._readable(node):
                self._lose(node, f"nothing was heard of it for {node.silent_s:.0f} s")
            else:
                node.asked()
                self._tell(node, {"op": "ping", "sent": now})
        for channel in [c for c, since in self._strangers.items() if now - since > HELLO_S]:
            self._shut(channel)

    def _readable(self, node: Node) -> bool:
        """True while its words are here but unread: then it is this process that was slow."""
        return any(key.data is node for key, _ in self._selector.select(0))

    def _tell(self, node: Node, message: Mapping[str, Any]) -> None:
        if node.lost is None:
            try:
                node.channel.send(message)
            except Lost as lost:
                for _ in range(64):  # its last words may say why it left
                    self._hear(node)
                self._lose(node, str(lost))

    def _lose(self, node: Node, why: str) -> None:
        if node.lost is not None:
            return
        self._selector.unregister(node.channel)
        node.channel.close()
        self._pending += node.lose(why)

    def _shut(self, channel: Channel) -> None:
        self._strangers.pop(channel, None)
        self._selector.unregister(channel)
        channel.close()

    def end(self, linger_s: float = 0.0) -> None:
        """Sends every agent home; waits ``linger_s`` for those that did not come yet."""
        until = time.monotonic() + linger_s
        self.attach(None)
        while self.missing_agents() and time.monotonic() < until:
            self.receive(0.1)
        for node in self.nodes.values():
            self._tell(node, {"op": "end", "whole": self._whole})
            node.channel.close()
        for channel in list(self._strangers):
            self._shut(channel)
        self._selector.close()
        self._listener.close()
        if self._home is not None:
            self._home.close()

    def missing_agents(self) -> list[int]:
        """Node ranks that never said hello."""
        return [n for n in range(1, self.place.nnodes) if n not in self.nodes]
