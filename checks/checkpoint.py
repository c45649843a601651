"""Is a checkpoint complete, intact and what its files say it is? (What it means for resuming:
``checkpoint_resume.py``.)"""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import CheckpointFacts, Finding, Where, check, meaning_of, ok

from ._checkpoint_common import faults, finding, home, spoken
from ._checkpoint_plants import (
    cut_file,
    damaged_byte,
    dangling_pointer,
    incomplete_set,
    mixed_prefix,
    not_a_number,
    payload,
    zero_tail,
)


@check("checkpoint.complete", question="checkpoint", plant=incomplete_set,
       asks="Are all files of the checkpoint there, and what proves it?")  # fmt: skip
@spoken("complete: nothing to ask of this checkpoint")
def complete(facts: CheckpointFacts) -> Iterator[Finding]:
    """Missing shards, ranks, markers; the proof is stated, and its absence is a note, never silently a pass."""
    found = list(faults(facts, "completeness"))
    yield from found
    if facts.level == "names":
        if facts.layout == "unknown" and not found:
            yield finding("read.nothing", f"{facts.path}: no layout is recognised by the names of its files")
        elif not found:
            yield ok(f"complete: {facts.completion.proof}", measured=facts.files, unit="file")
    elif facts.tensors == 0 and not facts.areas:
        yield finding("read.nothing", f"{facts.path}: nothing in it was understood")
    elif not any(a.present for a in facts.areas) and not facts.faults:
        yield finding("read.nothing", f"{facts.path}: neither weights nor training state were found")
    elif not found and facts.completion.proven is not False:
        proof = facts.completion.proof
        certain = "" if facts.completion.proven else " (a count, not a proof: the format has no completion marker)"
        yield ok(f"complete: {proof}{certain}", measured=facts.files, unit="file")


@check("checkpoint.structure", question="checkpoint", plant=(cut_file, zero_tail),
       asks="Can every file be read, and do shards tile their tensors?")  # fmt: skip
@spoken("structure: nothing to ask of this checkpoint")
def structure(facts: CheckpointFacts) -> Iterator[Finding]:
    """Truncation, wrong sizes, holes, overlaps, bounds, orphans, leftovers, index against files."""
    found = list(faults(facts, "structure"))
    yield from found
    if facts.faults_left_out:
        yield ok(
            f"{facts.faults_left_out} more anomalies of the same kinds are not listed", measured=facts.faults_left_out
        )
    if facts.tensors and not any(f.bad for f in found):
        yield ok(
            f"{facts.tensors:,} tensors in {facts.files:,} files fit their descriptions",
            measured=facts.tensors,
            unit="tensor",
        )


@check("checkpoint.integrity", question="checkpoint", plant=damaged_byte,
       asks="Do the bytes match the checksums already in the files?")  # fmt: skip
@spoken("integrity: nothing to ask of this checkpoint")
def integrity(facts: CheckpointFacts) -> Iterator[Finding]:
    """CRC32 of torch archives (which torch.load ignores), fletcher32 of HDF5, sha256 of Megatron's integrity.json."""
    found = list(faults(facts, "integrity"))
    yield from found
    if facts.level == "full" and not found:
        if facts.crcs_checked:
            yield ok(f"{facts.crcs_checked:,} checksums match", measured=facts.crcs_checked, unit="checksum")
        elif facts.tensors:
            yield ok(
                "this format records no checksums: only a manifest can tell whether bytes changed",
                measured=0,
                unit="checksum",
            )


@check("checkpoint.values", question="checkpoint", plant=not_a_number,
       asks="Are weights and optimizer state finite, and squares not negative?")  # fmt: skip
@spoken("values: nothing to ask of this checkpoint")
def values(facts: CheckpointFacts) -> Iterator[Finding]:
    """NaN, Inf, negative second moments, blocks of zeros: what training would carry on with."""
    found = list(faults(facts, "values"))
    yield from found
    if facts.level == "full" and facts.tensors_scanned and not found:
        yield ok(
            f"{facts.tensors_scanned:,} tensors are finite",
            measured=0,
            unit="element",
            limit=0,
            limit_source="definition",
        )


@check("checkpoint.weights", question="checkpoint", plant=mixed_prefix,
       asks="Are the weights there, under one naming, in the intended dtype?")  # fmt: skip
@spoken("weights: nothing to ask of this checkpoint")
def weights(facts: CheckpointFacts) -> Iterator[Finding]:
    """Empty ZeRO-3 placeholders, mixed prefixes, dtype drift, broken ties, weights that are missing altogether."""
    found = list(faults(facts, "model"))
    yield from found
    area = facts.area("model")
    missing = area is not None and not area.present and facts.purpose == "training"
    if missing and not (facts.layout.startswith("deepspeed") and (facts.optimizer and facts.optimizer.master)):
        where = Where(file=home(facts, "model"), key="model")
        yield finding("model.absent", "no weights are in the checkpoint, although training state is", where=where)
    elif area is not None and area.present and not found:
        yield ok(f"{area.count:,} weights", measured=area.count, unit="tensor")


@check("checkpoint.pointer", question="checkpoint", plant=dangling_pointer,
       asks="Does `latest` name the newest complete checkpoint?")  # fmt: skip
@spoken("pointer: nothing to ask of this checkpoint")
def pointer(facts: CheckpointFacts) -> Iterator[Finding]:
    """Pointers that dangle, lag behind, or run ahead of what is complete; the newest complete sibling is named."""
    found = list(faults(facts, "pointer"))
    whole = [s for s in facts.siblings if s.complete and s.step is not None]
    newest = max(whole, key=lambda s: s.step or 0, default=None)
    hint = f"; the newest complete one is {newest.name}" if newest is not None else ""
    for item in facts.pointers:
        where = Where(file=item.file, step=item.step)
        if not item.exists:
            text = f"{item.file} names {item.target!r}, which is not there{hint}"
            found.append(finding("pointer.dangling", text, where=where))
        elif newest is not None and item.step is not None and (newest.step or 0) > item.step:
            text = f"{item.file} names step {item.step}, but {newest.name} is complete and newer"
            found.append(
                finding("pointer.stale", text, where=where, measured=item.step, limit=newest.step, unit="update")
            )
    found += _last(facts, newest.name if newest else "", newest.step if newest else None)
    broken = [s for s in facts.siblings if s.complete is False and s.step is not None and s.name != facts.selected]
    for sibling in broken:
        if newest is not None and (sibling.step or 0) > (newest.step or 0):
            text = f"{sibling.name} has the highest step but is incomplete ({sibling.reason}){hint}"
            found.append(finding("pointer.newest-incomplete", text, where=Where(file=sibling.name, step=sibling.step)))
        elif newest is not None:
            text = f"{sibling.name} is incomplete: {sibling.reason}"
            found.append(finding("pointer.sibling-incomplete", text, where=Where(file=sibling.name, step=sibling.step)))
    found += _order(facts)
    yield from found
    if facts.pointers and not found:
        yield ok(f"{facts.pointers[0].file} names {facts.pointers[0].target}, the newest complete checkpoint")


def _last(facts: CheckpointFacts, newest: str, step: int | None) -> list[Finding]:
    """Lightning resumes from last.ckpt, whatever its siblings' names say."""
    mine = next((s.value for s in facts.steps if s.main), None)
    if facts.selected != "last.ckpt" or mine is None or step is None or step <= mine:
        return []
    text = f"last.ckpt holds step {mine:g}, but {newest} is complete and newer"
    where = Where(file="last.ckpt")
    return [finding("pointer.stale", text, where=where, measured=mine, limit=step, unit="update")]


def _order(facts: CheckpointFacts) -> list[Finding]:
    """Newest by number is not newest by time: another run's leftovers, or rotation by modification time."""
    seen = [(s.step, s.mtime, s.name) for s in facts.siblings if s.step is not None and s.mtime]
    if len(seen) < 2:
        return []
    by_step, by_time = max(seen), max(seen, key=lambda s: s[1] or 0.0)
    if by_step[2] == by_time[2] or (by_time[1] or 0.0) - (by_step[1] or 0.0) < 3600:
        return []
    hours = ((by_time[1] or 0.0) - (by_step[1] or 0.0)) / 3600
    text = f"{by_step[2]} has the highest step, but {by_time[2]} is {hours:.0f} h newer: leftovers of another run?"
    return [
        finding(
            "pointer.order",
            text,
            where=Where(file=by_step[2], step=by_step[0]),
            measured=round(hours, 1),
            limit=1,
            unit="h",
        )
    ]


@check("checkpoint.security", question="checkpoint", plant=payload,
       asks="Would loading the checkpoint run code, or read files outside it?")  # fmt: skip
@spoken("security: nothing to ask of this checkpoint")
def security(facts: CheckpointFacts) -> Iterator[Finding]:
    """Names in pickles against an exact list; links and paths out of the folder; archives that lie about their
    members."""
    from ._checkpoint_names import judge_name

    found = list(faults(facts, "security"))
    for seen in facts.names:
        kind, text = judge_name(seen)
        if kind is not None:
            found.append(finding(kind, text, where=Where(file=seen.file, key=seen.path[:200])))
    yield from found
    if not found:
        yield ok(
            f"{len(facts.names)} names in pickles, all known to be harmless", measured=len(facts.names), unit="name"
        )
    assert meaning_of("security.code").word == "SECURITY"
