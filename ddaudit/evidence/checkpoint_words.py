"""What each kind of fault means for somebody who wants to resume: the verdict word, the area, the severity, what to do.

Words, from best to worst: OK; DEGRADED (resumable, not reproducible or not clean); UNKNOWN (evidence absent);
NOT-RESUMABLE (weights fine, training state lost); WRONG (loads, but state is false or mixed); BROKEN (cannot be
loaded); SECURITY.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ddaudit.findings import Finding, Severity, Status

__all__ = ["WORDS", "Meaning", "meaning_of", "overall", "status_of", "word_of"]

WORDS = ("OK", "DEGRADED", "UNKNOWN", "NOT-RESUMABLE", "WRONG", "BROKEN", "SECURITY")
PREFIX = "checkpoint."


class Meaning(NamedTuple):
    """How a kind of fault is judged."""

    word: str
    area: str
    remedy: str


_COPY = "Copy the file again from the source and verify it there; else resume from the newest complete sibling."
_WRITER = "Load it only with the code that wrote it, after reading that code; or have the writer save plain tensors."
_MIXED = "Do not resume: load the newest complete sibling, whose parts come from one save."
_SAVE = "Have the save call write this part; until then resume from a sibling that has it."
_CLEAN = "Remove it once no job writes here any more."

# Each row: word, area, what to do, kinds of fault.
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "BROKEN",
        "structure",
        _COPY,
        "file.truncated file.empty file.malformed file.zeros file.unreadable file.json file.unknown "
        "container.member "
        "container.pickle tensor.storage-missing tensor.storage-size tensor.out-of-storage "
        "tensor.missing safetensors.entry "
        "safetensors.overlap safetensors.hole safetensors.truncated safetensors.trailing "
        "index.mismatch index.malformed "
        "shard.out-of-bounds shard.not-stored shard.mismatch shard.not-a-tensor shard.range "
        "dcp.metadata dcp.storage-entry "
        "dcp.tensor-entry",
    ),
    ("BROKEN", "structure", "Run `git lfs pull` where the repository was cloned.", "file.lfs-pointer"),
    (
        "BROKEN",
        "completeness",
        "Find the missing file (another node's disk, an upload cut short), or use the newest complete sibling.",
        "complete.metadata-missing complete.file-missing complete.shard-missing complete.marker-missing "
        "complete.marker-unreadable complete.object-missing complete.rank-file-missing "
        "complete.conversion-unfinished",
    ),
    (
        "NOT-RESUMABLE",
        "completeness",
        "If nothing else is wrong here, remove the marker; NeMo will then see the checkpoint.",
        "complete.unfinished-marker",
    ),
    ("DEGRADED", "completeness", "Keep it with the run's configuration.", "complete.optional-missing"),
    ("DEGRADED", "completeness", _CLEAN, "complete.metadata-temporary"),
    (
        "WRONG",
        "structure",
        "A loader leaves old memory in the hole or lets the last writer win: use a complete sibling.",
        "shard.hole shard.overlap safetensors.duplicate shard.copied shard.exchanged",
    ),
    ("WRONG", "structure", "Audit again when no job writes to the folder.", "file.changed"),
    (
        "DEGRADED",
        "structure",
        _CLEAN,
        "file.trailing file.gap file.orphan file.stale file.stale-rank file.temporary "
        "dcp.storage-orphan index.unlisted",
    ),
    ("DEGRADED", "structure", "Rewrite the index from the files.", "index.total-size"),
    ("DEGRADED", "structure", "Compare the two shards on their ranks before you trust either.", "shard.repeated"),
    ("DEGRADED", "structure", "Keep one value for the key; loaders take the last.", "json.duplicate-key"),
    ("DEGRADED", "structure", "Have the job save a state dict instead of the object.", "object.whole"),
    (
        "UNKNOWN",
        "structure",
        "Read this part with the framework that wrote it.",
        "dcp.transform shard.unchecked file.unsupported file.too-many path.unlistable root.ambiguous read.nothing",
    ),
    ("OK", "structure", "", "name.twice container.crc-absent"),
    ("WRONG", "integrity", _COPY, "integrity.crc"),
    ("DEGRADED", "integrity", "Write the digests again.", "integrity.unreadable"),
    (
        "WRONG",
        "values",
        "Resume from the newest sibling without them; lower the learning rate or check loss scaling before it.",
        "values.not-finite-model values.not-finite-optimizer values.negative-square",
    ),
    (
        "WRONG",
        "values",
        _MIXED,
        "values.zeroed",
    ),
    (
        "DEGRADED",
        "values",
        "Compare the tensor with a sibling: blocks of zeros are what a crash leaves on some file systems.",
        "values.zero-block",
    ),
    (
        "NOT-RESUMABLE",
        "optimizer",
        _SAVE,
        "optimizer.absent optimizer.rank-lost optimizer.uncovered optimizer.groups optimizer.target",
    ),
    (
        "WRONG",
        "optimizer",
        _MIXED,
        "optimizer.shape optimizer.dtype optimizer.order optimizer.state-missing optimizer.alias "
        "optimizer.master-mismatch",
    ),
    ("DEGRADED", "optimizer", "Keep moments in float32.", "optimizer.half"),
    (
        "DEGRADED",
        "optimizer",
        "Compare with a sibling; if the moments are lost, warm the learning rate up again.",
        "optimizer.no-moments",
    ),
    ("NOT-RESUMABLE", "model", _SAVE, "model.absent"),
    (
        "BROKEN",
        "model",
        "Gather the weights before saving (stage3_gather_16bit_weights_on_model_save), or use the ZeRO shards.",
        "weights.empty",
    ),
    ("DEGRADED", "model", "Load under names without wrapper prefixes.", "weights.mixed-prefix"),
    ("DEGRADED", "model", "Save in the dtype that the configuration states, or correct it.", "weights.dtype-drift"),
    ("DEGRADED", "model", "Decide whether the weights are tied, and save accordingly.", "weights.tie-broken"),
    ("DEGRADED", "optimizer", "Save the float32 master weights with the optimizer.", "weights.no-master"),
    (
        "DEGRADED",
        "optimizer",
        "Use the sharded checkpoint: the universal loader knows Adam's names only.",
        "universal.not-adam",
    ),
    ("NOT-RESUMABLE", "step", _SAVE, "step.missing step.rank-lost key.missing"),
    (
        "WRONG",
        "step",
        _MIXED,
        "step.optimizer-mismatch step.schedule-mismatch step.rank-mismatch step.directory-mismatch "
        "step.epoch-completed "
        "step.epoch-rate step.loop-mismatch world.ranks-differ",
    ),
    ("DEGRADED", "step", "Check how the job counts samples.", "step.samples-mismatch step.loops step.other-counter"),
    ("DEGRADED", "step", "Use one value for both.", "state.disagrees world.disagrees"),
    ("DEGRADED", "step", "Register an object that holds the step, so that it is saved.", "step.unsaved"),
    ("DEGRADED", "step", "Check that optimizer and schedule come from one save.", "step.rate"),
    (
        "DEGRADED",
        "step",
        "Resume from a checkpoint that ModelCheckpoint wrote during the epoch, or accept the lost batches.",
        "step.epoch-left",
    ),
    (
        "BROKEN",
        "model",
        "Find the file or the rank that held the weight; else use a sibling that has it.",
        "weights.missing weights.ranks-differ",
    ),
    (
        "NOT-RESUMABLE",
        "sampler",
        "Save the sampler's or loader's state; else fast-forward the loader by the number given here.",
        "sampler.missing sampler.rank-missing sampler.rank-lost",
    ),
    (
        "WRONG",
        "sampler",
        "Set the position by the step before resuming, or use a sibling.",
        "sampler.position-mismatch sampler.ranks-differ sampler.beyond-epoch sampler.impossible sampler.workers",
    ),
    ("DEGRADED", "sampler", "Save the position too; without it only an epoch's end is exact.", "sampler.no-position"),
    ("DEGRADED", "model", "Check that configuration and weights belong together.", "weights.config-mismatch"),
    ("DEGRADED", "model", "Check whether a cast was meant for this weight alone.", "weights.mixed-dtype"),
    (
        "WRONG",
        "structure",
        "Copy the file again: blocks that a crash or a full disk left unwritten read as zeros.",
        "file.zero-tail",
    ),
    ("DEGRADED", "sampler", "Save one state for each rank.", "sampler.one-for-all sampler.rank-extra"),
    ("DEGRADED", "sampler", "Call set_epoch() before loading the state.", "sampler.no-epoch"),
    ("DEGRADED", "sampler", "Resume with the same world size and batch, or accept the repeats.", "sampler.target"),
    ("DEGRADED", "sampler", "Save the sampler's or loader's state with the step.", "sampler.unsaved"),
    ("NOT-RESUMABLE", "schedule", _SAVE, "schedule.missing schedule.rank-lost"),
    ("DEGRADED", "schedule", "Check that the job has no schedule, or rebuild it from the step.", "schedule.unsaved"),
    (
        "DEGRADED",
        "rng",
        "Seed anew on resume and say so in the run's notes.",
        "rng.missing rng.incomplete rng.rank-lost rng.collapsed rng.exchanged rng.malformed",
    ),
    (
        "DEGRADED",
        "scaler",
        "Start loss scaling low: the default scale may overflow for some steps.",
        "scaler.missing scaler.keys",
    ),
    (
        "DEGRADED",
        "pointer",
        "Write the pointer again once the checkpoint is complete.",
        "pointer.missing pointer.stale",
    ),
    (
        "DEGRADED",
        "pointer",
        "Remove the incomplete folder, so that nothing resumes from it.",
        "pointer.newest-incomplete pointer.sibling-incomplete",
    ),
    ("DEGRADED", "pointer", "Make sure that one run owns the folder.", "pointer.order"),
    ("BROKEN", "pointer", "Point to the newest complete checkpoint.", "pointer.dangling pointer.unreadable"),
    (
        "SECURITY",
        "security",
        "Do not load it. Find out who wrote it.",
        "security.code security.computed-call path.escape path.link-outside path.special-file hdf5.external "
        "container.duplicate-member container.compressed container.encrypted "
        "container.name-mismatch container.overlap "
        "container.prefix container.pickle-trailing container.too-large",
    ),
    ("DEGRADED", "security", _WRITER, "security.unknown-object"),
)

MEANINGS: dict[str, Meaning] = {
    kind: Meaning(word, area, remedy) for word, area, remedy, kinds in _ROWS for kind in kinds.split()
}
_UNLISTED = Meaning("UNKNOWN", "structure", "")
_CRITICAL = ("structure", "completeness", "integrity", "security")


def meaning_of(kind: str) -> Meaning:
    """The judgement of a fault kind; an unlisted kind is UNKNOWN, never OK."""
    return MEANINGS.get(kind, _UNLISTED)


def status_of(kind: str) -> tuple[Status, Severity]:
    """Status and severity of a finding of that kind."""
    meaning = meaning_of(kind)
    if meaning.word == "OK":
        return Status.PASS, Severity.INFO
    if meaning.word == "DEGRADED":
        return Status.WARN, Severity.MINOR
    if meaning.word == "UNKNOWN":
        return Status.SKIP, Severity.MAJOR
    return Status.FAIL, Severity.CRITICAL if meaning.area in _CRITICAL or meaning.word == "BROKEN" else Severity.MAJOR


def word_of(finding: Finding) -> str:
    """The verdict word of one finding."""
    if finding.status in (Status.PASS, Status.WAIVED):
        return "OK"
    if finding.status is Status.SKIP and finding.id.removeprefix(PREFIX) not in MEANINGS:
        return "OK"  # a question that does not apply to this checkpoint
    return meaning_of(finding.id.removeprefix(PREFIX)).word


def overall(findings: Iterable[Finding]) -> str:
    """The worst word; UNKNOWN when nothing was judged."""
    seen = list(findings)
    if not any(f.status in (Status.PASS, Status.WARN, Status.FAIL, Status.WAIVED) for f in seen):
        return "UNKNOWN"
    return max((word_of(f) for f in seen), key=WORDS.index, default="UNKNOWN")
