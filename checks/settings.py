"""Were all ranks started alike? A variable that one rank lacks explains more slow jobs than a bad device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ddaudit.api import Finding, Plant, Remedy, SettingsReport, Severity, Where, check, ok, skip, warn

#: Settings by the first part of their name: whether a difference changes results or only speed, and what to do.
GRAVE = ("version", "variable", "driver")
REMEDIES: Mapping[str, str] = {
    "version": "Start all ranks from one image.",
    "driver": "Bring the drivers of the hosts to one version.",
    "variable": "Set it in what starts every rank (sbatch script, pod template), not in one shell's profile.",
    "limit": "Set the limit for the job, not for a login shell: limits.conf, LimitNOFILE, --ulimit.",
    "mount": "Mount the same file systems everywhere; give containers the same --shm-size.",
    "threads": "Give every rank the same number of cores, or set OMP_NUM_THREADS.",
    "machine": "Hosts are configured differently: compare them before trusting a timing.",
}


@check(
    "host.settings",
    question="bottleneck",
    asks="Were all ranks started with the same versions, variables, limits and mounts?",
    plant=(
        Plant(
            "one rank has another NCCL_ALGO",
            "host.env-differs",
            probe="settings",
            ranks=2,
            planted={"differ": "variable"},
        ),
        Plant(
            "one rank may open few files",
            "host.env-differs",
            probe="settings",
            ranks=2,
            planted={"differ": "limit"},
        ),
    ),
)
def settings(report: SettingsReport) -> Iterator[Finding]:
    """Compares each setting over the ranks. The ranks that hold the rarer value are named with it, and what most have;
    among two ranks nobody is the odd one, and both values are printed."""
    if len(report.ranks) < 2:
        yield skip("not measured: one rank has nobody to differ from")
        return
    names = sorted({name for rank in report.ranks for name in rank.settings})
    odd = [name for name in names if len({rank.settings.get(name) for rank in report.ranks}) > 1]
    for name in odd:
        yield _differs(report, name)
    if not odd:
        yield ok(f"{len(names)} settings are equal on all {len(report.ranks)} ranks", measured=0, unit="settings")


def _differs(report: SettingsReport, name: str) -> Finding:
    count = Counter(rank.settings.get(name) for rank in report.ranks)
    usual, _ = count.most_common(1)[0]
    others = [rank for rank in report.ranks if rank.settings.get(name) != usual]
    first, family = others[0], name.partition(".")[0]
    ranks = ", ".join(str(rank.rank) for rank in others[:8]) + (" ..." if len(others) > 8 else "")
    return warn(
        "host.env-differs",
        f"{name.partition('.')[2]} ({family}) is {_said(first.settings.get(name))} on rank(s) {ranks} and"
        f" {_said(usual)} on {count[usual]} other(s)",
        severity=Severity.MAJOR if family in GRAVE else Severity.MINOR,
        where=Where(rank=first.rank, host=first.host, key=name),
        measured=len(others),
        unit="ranks",
        limit=0,
        limit_source="ranks of one job are meant to be alike",
        remedy=Remedy(text=REMEDIES.get(family, "Make them alike.")),
    )


def _said(value: str | None) -> str:
    return "unset" if value is None else repr(value)
