"""From a path to evidence: choose the checkpoint, read it with its layout, measure, and put the facts together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ddaudit.checkpoint import contradictions, ranks, roots, values
from ddaudit.checkpoint.blank import check_blank, check_no_moments
from ddaudit.checkpoint.by_names import read_names
from ddaudit.checkpoint.configured import check_configured
from ddaudit.checkpoint.folder import Folder, open_folder
from ddaudit.checkpoint.harvest import harvest
from ddaudit.checkpoint.layouts import accelerate, finishing
from ddaudit.checkpoint.layouts.torch_files import is_temporary
from ddaudit.checkpoint.master import check_master
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.optimizer import optimizer_facts
from ddaudit.checkpoint.passes import FullPass, Progress
from ddaudit.checkpoint.reader import Reader
from ddaudit.checkpoint.scalars import read_scalars
from ddaudit.checkpoint.scan import TensorScan
from ddaudit.checkpoint.tails import check_tails
from ddaudit.evidence.checkpoint import Area, CheckpointFacts, NameSeen, World
from ddaudit.inert.torch_objects import TORCH

Level = Literal["names", "headers", "full"]
_RICH = ("schedule", "sampler", "rng")


@dataclass(slots=True)
class Collected:
    """The evidence, and what it was made from (for digests, listings and comparisons)."""

    facts: CheckpointFacts
    made: Checkpoint
    folder: Folder
    scans: dict[str, TensorScan] = field(default_factory=dict)


@dataclass(slots=True)
class Options:
    """How to collect. ``target`` is the layout of the job that will resume; ``job`` adds facts about its batch."""

    level: Level = "full"
    jobs: int = 1
    digest: bool = True
    progress: Progress | None = None
    target: World | None = None
    job: dict[str, tuple[int, str]] = field(default_factory=dict)
    known: dict[str, TensorScan] = field(default_factory=dict)
    done: Any = None


def collect(path: str, options: Options | None = None) -> Collected:
    """Reads the checkpoint at ``path``.

    Raises:
        CheckpointProblem: nothing can be opened there at all.
    """
    options = options or Options()
    folder, only = open_folder(path)
    choice = roots.choose(folder, only, look=options.level != "names")
    made = Checkpoint("unknown")
    for fact, known in options.job.items():
        made.world[fact] = known
    if options.level == "names":
        return _by_names(path, made, folder, choice, options)
    reader = Reader(choice.candidate.folder, made, options.level)
    made.layout = roots.read(reader, choice.candidate)
    ranks.check_parts(made)
    finishing.finish(reader, made)
    read_scalars(made, folder)
    if made.layout == accelerate.NAME:
        accelerate.finish(made)
    areas = harvest(made)
    ranks.check_families(made)
    ranks.check_rng(made)
    ranks.check_rng_sizes(made)
    contradictions.check_said(made)
    contradictions.check_saved_names(made)
    contradictions.check_rates_alike(made)
    optimizer = optimizer_facts(made)
    scans, read, crcs = (
        _full(made, folder, options, choice.candidate.folder.prefix) if options.level == "full" else ({}, 0, 0)
    )
    _note_listing(made, folder, choice)
    values.check_weights(made, scans)
    check_blank(made, scans, folder)
    check_no_moments(made, scans)
    check_configured(made)
    facts = _facts(path, made, folder, choice, areas, options)
    more = {"optimizer": optimizer, "bytes_read": read, "crcs_checked": crcs, "tensors_scanned": len(scans)}
    return Collected(facts.model_copy(update=more), made, folder, scans)


def _by_names(path: str, made: Checkpoint, folder: Folder, choice: roots.Choice, options: Options) -> Collected:
    """Names and sizes only: nothing of the content is known, and nothing is claimed of it."""
    candidate = choice.candidate
    made.layout = getattr(candidate.layout, "NAME", "file" if candidate.file else "unknown")
    made.purpose = "unknown"
    read_names(made, candidate.folder, candidate.file)
    _note_listing(made, folder, choice)
    return Collected(_facts(path, made, folder, choice, (), options), made, folder)


def _full(made: Checkpoint, folder: Folder, options: Options, prefix: str) -> tuple[dict[str, TensorScan], int, int]:
    run = FullPass(
        made,
        folder,
        jobs=options.jobs,
        digest=options.digest,
        progress=options.progress,
        known=options.known,
        done=options.done,
    )
    result = run.run()
    for name in run.close():
        made.fault("file.changed", f"{name} was modified while it was read: a job may still be writing", file=name)
    values.check_scans(made, result.scans)
    values.check_ties(made, result.scans)
    check_tails(made, folder)
    check_master(made, folder)
    assert prefix is not None
    return result.scans, result.bytes_read, result.crcs


def _note_listing(made: Checkpoint, folder: Folder, choice: roots.Choice) -> None:
    """Links out of the folder, FIFOs and devices, leftovers of interrupted saves, pointers that are missing."""
    listing = folder.listing
    for name, why in listing.outside.items():
        made.fault("path.link-outside", f"{name} is a link that was not followed: {why}", file=name)
    for name, why in listing.special.items():
        made.fault("path.special-file", f"{name} was not opened: {why}", file=name)
    if listing.cut:
        made.fault("file.too-many", "the folder has more files than are looked at")
    prefix = choice.candidate.folder.prefix
    if choice.candidate.file is None:
        for name in sorted(
            n for n in listing.sizes if n.startswith(prefix) and is_temporary(n) and not n.endswith(".metadata.tmp")
        ):
            made.fault("file.temporary", f"{name} is left over from an interrupted save", file=name)
        tag = prefix.rstrip("/")
        marks = [n for n in (*listing.sizes, *listing.folders) if n.endswith("-unfinished")]
        for mark in marks:
            if not tag or mark == f"{tag}-unfinished" or mark.startswith(prefix):
                made.fault("complete.unfinished-marker", f"{mark}: NeMo ignores or deletes this checkpoint", file=mark)
    for kind, text, file in choice.faults:
        made.fault(kind, text, file=file)
    if choice.ambiguous:
        made.fault("root.ambiguous", f"several checkpoints without step numbers: {', '.join(choice.ambiguous[:8])}")


def _facts(
    path: str, made: Checkpoint, folder: Folder, choice: roots.Choice, areas: tuple[Area, ...], options: Options
) -> CheckpointFacts:
    world = {k: v for k, (v, _) in made.world.items() if k in World.model_fields}
    sources = {k: s for k, (_, s) in made.world.items()}
    selected = choice.candidate.name or None
    mine = choice.candidate.folder
    names = [choice.candidate.file] if choice.candidate.file else mine.names()
    step = made.directory_step if made.directory_step is not None else choice.candidate.step
    per_epoch = made.facts.get("updates_per_epoch")
    return CheckpointFacts(
        path=path,
        layout=made.layout,
        level=options.level,
        purpose=_purpose(made, areas),
        rich=sum(a.present for a in areas if a.name in _RICH) >= 1,
        selected=selected,
        world=World(**world, sources=sources),
        completion=made.completion,
        areas=areas,
        steps=tuple(made.steps[:20_000]),
        positions=tuple(made.positions[:20_000]),
        pointers=(*choice.pointers, *made.pointers),
        siblings=tuple(choice.siblings),
        faults=tuple(made.faults),
        faults_left_out=sum(made.left_out.values()) - len(made.faults),
        names=tuple(
            NameSeen(path=p[:1000], called=c, file=f, count=n, known=p in TORCH)
            for p, (c, f, n) in sorted(made.names.items())
        ),
        skipped_updates=made.skipped_updates,
        updates_per_epoch=round(per_epoch) if per_epoch else None,
        files=len(names),
        bytes=sum(mine.size(n) for n in names if n in mine),
        tensors=len(made.tensors),
        target=options.target,
        facts=_kept(made, step),
    )


def _kept(made: Checkpoint, step: int | None) -> dict[str, Any]:
    """The layout's own facts that checks look at."""
    own = {k: v for k, v in made.facts.items() if k in _KEPT}
    return {"directory_step": step, "step_slack": made.facts.get("directory_step_slack", 0), **own}


_KEPT = (
    "micro_batches",
    "batches_in_epoch",
    "lightning",
    "lightning_missing",
    "fp16",
    "config",
    "dcp_writers",
    "optimizers",
    "bf16",
    "verl_missing",
    "sample_in_epoch",
    "accelerate_ranks",
    "epoch",
    "optimizer_sharding",
    "master_unread",
)


def _purpose(made: Checkpoint, areas: tuple[Area, ...]) -> Any:
    """Weights alone are an export; a loader's state alone is what a script saves beside its own checkpoint."""
    there = {a.name for a in areas if a.present}
    if made.purpose != "training":
        return made.purpose
    state = there - {"model"}
    if any(made.promises.get(a) == "required" for a in ("optimizer", "sampler", "schedule")):
        return "training"
    if there == {"model"} and not any(f.kind.startswith("optimizer.absent") for f in made.faults):
        return "weights"
    if there == {"sampler"}:
        return "loader-state"
    return "training" if state else "unknown"
