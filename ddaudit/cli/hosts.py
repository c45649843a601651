"""A command on several hosts: torchrun's flags, whose part this process has, and the meeting of the nodes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddaudit.errors import Exit, LaunchProblem, UsageProblem

if TYPE_CHECKING:
    from ddaudit.launch import Fleet, Place

__all__ = ["conducting", "find", "follow", "host_options"]

F = TypeVar("F", bound=Callable[..., Any])
#: How long a conductor that ends at once, such as for a wrong call, waits for agents to send them home.
LINGER_S = 3.0


class Duration(click.ParamType[float]):
    """``90s``, ``2m`` or a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from ddaudit.runbook.model import parse_duration

        try:
            return parse_duration(float(value) if str(value).replace(".", "", 1).isdigit() else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def host_options(function: F) -> F:
    """The options of a run over several hosts, named as torchrun names them."""
    for option in reversed(
        (
            click.option("--nnodes", type=click.IntRange(1, 65_536), help="Hosts of the run; Slurm, torchrun tell it."),
            click.option("--nproc-per-node", type=click.IntRange(1, 1024), help="Ranks on a host; default: its GPUs."),
            click.option("--node-rank", type=click.IntRange(0, 65_535), help="This host's number; host 0 conducts."),
            click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Where host 0 listens, as all hosts reach it."),
            click.option("--rdzv-id", metavar="WORD", help="Keeps runs apart that meet at one place."),
            click.option("--join-timeout", type=Duration(), default="10m", show_default=True, help="Wait for hosts."),
            click.option("--node-timeout", type=Duration(), default="15s", help="Silence of a lost host [15s]."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def find(options: Mapping[str, Any]) -> Place | None:
    """This process's place among the hosts, or None for a run on this host alone."""
    from ddaudit.engine.facts import count_gpus
    from ddaudit.launch.place import Asked, find_place

    asked = Asked(options["nnodes"], options["nproc_per_node"], options["node_rank"], options["rdzv_endpoint"])
    gpus = 0 if options.get("device") == "cpu" else count_gpus()
    return find_place(asked, os.environ, gpus)


def _key(options: Mapping[str, Any]) -> str:
    step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}".strip(".")
    return str(options["rdzv_id"] or os.environ.get("TORCHELASTIC_RUN_ID") or step or "ddaudit")


def _door(place: Place, options: Mapping[str, Any]) -> bytes:
    """An abstract socket's name, by which processes of one host and run find each other; it leaves no file."""
    return f"\0ddaudit-{os.getuid()}-{_key(options)}-{place.port}-{place.node_rank}-{place.attempt}"[:100].encode()


def follow(place: Place, options: Mapping[str, Any]) -> int:
    """The part of every process but the conductor: agent of its host, or one that waits for its host's agent."""
    if place.local_rank > 0:
        return _wait(place, options)
    from ddaudit.engine.facts import count_gpus
    from ddaudit.launch.agent import Agent

    with _open_door(place, options):
        agent = Agent(place, key=_key(options), gpus=count_gpus(), join_timeout_s=options["join_timeout"])
        return agent.serve()


@contextmanager
def _open_door(place: Place, options: Mapping[str, Any]) -> Iterator[None]:
    """While open, the node's other processes wait; they leave when it closes, in whatever way this process ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.bind(_door(place, options))
        except OSError:
            what = f"another process of this host is node {place.node_rank} of this run already"
            raise UsageProblem(what, fix="give each run its own --rdzv-id or port") from None
        door.listen(1024)
        yield


def _wait(place: Place, options: Mapping[str, Any]) -> int:
    until = time.monotonic() + options["join_timeout"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        while True:
            try:
                door.connect(_door(place, options))
                break
            except OSError:
                if time.monotonic() > until:
                    raise LaunchProblem("local rank 0 of this host did not start", fix="look at its output") from None
                time.sleep(0.1)
        try:
            door.recv(1)
        except ConnectionError:
            return Exit.PASS
    return Exit.PASS


@contextmanager
def conducting(place: Place | None, options: Mapping[str, Any]) -> Iterator[Fleet | None]:
    """The fleet of other hosts for the conductor; None on one host. All agents go home when it closes."""
    if place is None:
        yield None
        return
    from ddaudit.launch import Fleet, host_name

    with _open_door(place, options):
        if place.nnodes == 1:
            yield None
            return
        silence_s, join_timeout_s = options["node_timeout"], options["join_timeout"]
        fleet = Fleet(place, key=_key(options), host=host_name(), silence_s=silence_s, join_timeout_s=join_timeout_s)
        linger_s = LINGER_S
        try:
            if place.meeting is not None:
                from ddaudit.launch.torchstore import publish_endpoint

                publish_endpoint(place, fleet.key, place.host, fleet.address[1])
            yield fleet
            linger_s = 0.0
        finally:
            fleet.end(linger_s)
