"""Identity does not depend on sharding, world size, format or names of wrappers; real differences are located."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.checkpoint.boxes import cover
from ddaudit.checkpoint.collect import Options, collect
from ddaudit.checkpoint.diff import compare_paths
from ddaudit.checkpoint.manifest import Journal, load, manifest_of, render, verify, write
from ddaudit.checkpoint.scan import TILE_BYTES, ArrayScan
from ddaudit.cli.checkpoint_audit import audit_path
from ddaudit.errors import EvidenceProblem
from tests.checkpoint import generate as g


def same(a: Path, b: Path) -> bool:
    return compare_paths(str(a), str(b)).identical


@pytest.mark.parametrize(("ranks", "cut"), [(1, 0), (3, 0), (4, 0), (2, 1), (4, 1)])
def test_resharded_saves_are_identical(ranks: int, cut: int, tmp_path: Path):
    one = g.dcp_training(tmp_path / "a" / "step_6")
    assert same(one, g.dcp_training(tmp_path / "b" / "step_6", ranks=ranks, cut=cut))


def test_three_dimensions_cut_in_the_middle(tmp_path: Path):
    tensors = {"model.w": torch.randn(3, 10, 4)}
    one = g.dcp(tmp_path / "a", tensors, {}, ranks=2, cut=1)
    assert same(one, g.dcp(tmp_path / "b", tensors, {}, ranks=5, cut=2))


def test_dcp_equals_its_one_file_form_and_safetensors(tmp_path: Path):
    tensors = {f"model.{n}": w for n, w in g.weights().items()}
    folder = g.dcp(tmp_path / "a", tensors, {})
    assert same(folder, g.save({"model": g.weights()}, tmp_path / "m.pt"))
    assert same(folder, g.safetensors(g.weights(), tmp_path / "model.safetensors"))


def test_wrapper_prefixes_and_non_contiguous_storage_do_not_matter(tmp_path: Path):
    plain = g.save({"model": g.weights()}, tmp_path / "a.pt")
    wrapped = {f"module._orig_mod.{n}": w.t().contiguous().t() for n, w in g.weights().items()}
    assert same(plain, g.save({"model": wrapped}, tmp_path / "b.pt"))


def test_flat_zero_partitions_equal_their_universal_form(tmp_path: Path):
    root = g.deepspeed(tmp_path / "z")
    folder = tmp_path / "u" / "global_step6"
    source = torch.load(root / "global_step6" / "mp_rank_00_model_states.pt", weights_only=False)
    g.save(source, folder / "mp_rank_00_model_states.pt")
    for name, weight in g.weights().items():
        for word, value in (("fp32", weight), ("exp_avg", weight * 0.1), ("exp_avg_sq", weight**2)):
            g.save({"param": value}, folder / "zero" / name / f"{word}.pt")
    (folder.parent / "latest_universal").write_text("global_step6")
    assert same(root, folder.parent)


def test_the_first_differing_element_is_located(tmp_path: Path):
    changed = g.weights()
    changed["emb.weight"][5, 7] += 1
    found = compare_paths(
        str(g.save({"model": g.weights()}, tmp_path / "a.pt")), str(g.save({"model": changed}, tmp_path / "b.pt"))
    )
    (difference,) = found.differences
    assert (difference.name, difference.kind, difference.first_index) == ("model.emb.weight", "data", (5, 7))


def test_values_dtypes_shapes_and_missing_names_differ(tmp_path: Path):
    a = g.save(g.training_state(), tmp_path / "a.pt")
    other = g.weights()
    other["head.weight"] = other["head.weight"].half()
    other["norm.weight"] = torch.ones(32)  # a vocabulary or width padded twice
    del other["emb.weight"]
    found = compare_paths(str(a), str(g.save(g.training_state(model=other, global_step=7), tmp_path / "b.pt")))
    kinds = {d.name: d.kind for d in found.differences}
    assert kinds == {"model.head.weight": "dtype", "model.norm.weight": "shape", "global_step": "value"}
    assert found.only_in_a == ("model.emb.weight",)
    assert not found.identical


def test_a_tied_alias_that_one_side_left_out_is_ignored(tmp_path: Path):
    both = g.weights()
    both["lm_head.weight"] = both["emb.weight"]
    found = compare_paths(
        str(g.save({"model": both}, tmp_path / "a.pt")), str(g.save({"model": g.weights()}, tmp_path / "b.pt"))
    )
    assert found.identical and any("tied alias" in line for line in found.ignored)


def test_two_unreadable_files_are_not_comparable(tmp_path: Path):
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
    found = compare_paths(str(tmp_path / "a.pt"), str(tmp_path / "b.pt"))
    assert not found.comparable and not found.identical


def manifest(path: Path) -> dict[str, object]:
    return manifest_of(collect(str(path), Options()))


def test_equal_checkpoints_give_equal_manifest_bytes(tmp_path: Path):
    one = render(manifest(g.dcp_training(tmp_path / "a" / "step_6")))
    two = render(manifest(g.dcp_training(tmp_path / "b" / "step_6", ranks=3)))
    assert one == two
    assert str(tmp_path) not in one


def test_a_manifest_names_the_tensor_that_changed(tmp_path: Path):
    path = g.save(g.training_state(), tmp_path / "c.pt")
    write(manifest(path), tmp_path / "m.json")
    assert verify(str(path), str(tmp_path / "m.json")).identical
    state = g.training_state()
    state["model"]["norm.weight"][3] = 9
    g.save(state, path)
    assert [d.name for d in verify(str(path), str(tmp_path / "m.json")).differences] == ["model.norm.weight"]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "other"}', '{"schema": "ddaudit-manifest/1", "tensors": {"a": 3}, "values": {}}']
)
def test_a_file_that_is_no_manifest_is_a_problem(text: str, tmp_path: Path):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(EvidenceProblem):
        load(tmp_path / "m.json")


def test_a_journal_saves_what_was_read_and_forgets_another_checkpoint(tmp_path: Path):
    path = str(g.save(g.training_state(), tmp_path / "c.pt"))
    journal = Journal(tmp_path / "j", "stamp")
    collect(path, Options(done=journal.add))
    journal.close(finished=False)
    again = Journal(tmp_path / "j", "stamp")
    assert again.known
    assert collect(path, Options(known=again.known)).scans.keys() == again.known.keys()
    again.close(finished=False)
    other = Journal(tmp_path / "j", "another")
    assert other.known == {}
    other.close(finished=True)
    assert not (tmp_path / "j").exists()


def interrupted(path: str, journal: Path, after: int) -> None:
    """A full audit that is killed once ``after`` tensors are in its journal."""
    with pytest.raises(KeyboardInterrupt):
        audit_path(path, resume=str(journal), progress=stop_when(journal, after))


def stop_when(journal: Path, after: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if len(journal.read_text().splitlines()) > after:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_audit_goes_on_where_it_was(tmp_path: Path):
    path, journal = str(g.save(g.training_state(), tmp_path / "c.pt")), tmp_path / "journal"
    whole = audit_path(path)
    interrupted(path, journal, after=4)
    rest = audit_path(path, resume=str(journal))
    assert 0 < rest.facts.bytes_read < whole.facts.bytes_read
    assert (rest.word, rest.facts.crcs_checked) == (whole.word, whole.facts.crcs_checked)
    assert not journal.exists()


def test_damage_seen_before_the_interruption_is_seen_after_it(tmp_path: Path):
    path, journal = g.save(g.training_state(), tmp_path / "c.pt"), tmp_path / "journal"
    raw = bytearray(path.read_bytes())
    at = raw.index(g.weights()["emb.weight"].numpy().tobytes())
    raw[at + 9] ^= 1
    path.write_bytes(bytes(raw))
    interrupted(str(path), journal, after=4)
    result = audit_path(str(path), resume=str(journal))
    assert result.word == "WRONG" and any(f.id == "checkpoint.integrity.crc" for f in result.findings)


def test_a_file_that_is_no_journal_is_not_overwritten(tmp_path: Path):
    path, other = str(g.save(g.training_state(), tmp_path / "c.pt")), tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(EvidenceProblem, match="no journal"):
        audit_path(path, resume=str(other))
    assert other.read_text() == "mine"


@given(
    st.integers(1, 5000),
    st.lists(st.integers(1, 997), min_size=1, max_size=8),
    st.sampled_from(["float32", "bfloat16"]),
)
@settings(max_examples=60, deadline=None)
@np.errstate(invalid="ignore")
def test_a_digest_does_not_depend_on_how_the_bytes_come(numel: int, sizes: list[int], dtype: str):
    data = np.random.default_rng(numel).bytes(numel * (4 if dtype == "float32" else 2))
    whole, pieces = ArrayScan(dtype, numel), ArrayScan(dtype, numel)
    whole.feed(data)
    at = index = 0
    while at < len(data):
        pieces.feed(data[at : at + sizes[index % len(sizes)]])
        at, index = at + sizes[index % len(sizes)], index + 1
    assert whole.finish() == pieces.finish()


def test_long_tensors_have_one_digest_a_tile():
    scan = ArrayScan("float32", TILE_BYTES // 2)
    scan.feed(np.zeros(TILE_BYTES // 2, "f4"))
    assert len(scan.finish()["tiles"]) == 2


@pytest.mark.parametrize(
    ("dtype", "raw", "nan", "inf"),
    [
        ("float32", np.array([1, np.nan, np.inf, -np.inf], "f4").tobytes(), 1, 2),
        ("float32", np.array([3e38, 3e38, -3e38], "f4").tobytes(), 0, 0),
        ("float64", np.array([np.nan, 1e308], "f8").tobytes(), 1, 0),
        ("float16", np.array([np.inf, 65504, np.nan], "f2").tobytes(), 1, 1),
        ("bfloat16", np.array([0x7F80, 0xFF80, 0x7FC0, 0x7F7F], "u2").tobytes(), 1, 2),
        ("int32", np.array([2**31 - 1], "i4").tobytes(), 0, 0),
    ],
)
def test_nan_and_inf_are_counted_and_large_numbers_are_neither(dtype: str, raw: bytes, nan: int, inf: int):
    scan = ArrayScan(dtype, 1)
    with np.errstate(invalid="ignore"):
        scan.feed(raw)
    found = scan.finish()
    assert (found["nan"], found["inf"]) == (nan, inf)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_cover_agrees_with_counting_every_element(data: st.DataObject):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    draw_box = st.tuples(*[st.tuples(st.integers(0, n - 1), st.integers(0, n)) for n in shape])
    boxes = [
        (tuple(o for o, _ in box), tuple(min(n, s - o) for (o, n), s in zip(box, shape, strict=True)))
        for box in data.draw(st.lists(draw_box, max_size=6))
    ]
    count = np.zeros(shape, int)
    for offsets, sizes in boxes:
        count[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))] += 1
    found = cover(shape, boxes)
    assert (found.overlap is not None) == bool((count > 1).any())
    if found.overlap is None:
        assert (found.volume < prod(shape)) == bool((count == 0).any())
        if found.hole is not None:
            assert count[found.hole] == 0


def test_a_hundred_thousand_boxes_are_examined_quickly():
    boxes = [((i * 4, 0), (4, 64)) for i in range(100_000)]
    assert cover((400_000, 64), boxes).volume == 400_000 * 64
    assert json.dumps(cover((400_001, 64), boxes).hole) == "[400000, 0]"
