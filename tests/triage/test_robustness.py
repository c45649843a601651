"""Bundles that try to break the reader: no crash, no injection, bounded time."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import pickle
import random
import tarfile
import time

import pytest

from ddaudit.errors import EvidenceProblem, UsageProblem
from ddaudit.triage.answer import investigate
from ddaudit.triage.archive import write_archive
from ddaudit.triage.catalogue import load_catalogue
from ddaudit.triage.post import render_post
from tests.triage.test_made_incidents import make

ERROR = (
    b"[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 3, in main\n[rank3]: KeyError: 'lr'\n"
)


def solve(folder):
    return investigate([folder]).to_json()


def test_random_bytes_are_no_incident(tmp_path):
    rng = random.Random(7)
    for number in range(20):
        (tmp_path / f"noise{number}.log").write_bytes(rng.randbytes(200_000))
    assert solve(tmp_path)["cause"] in ("none", "unknown.peer-lost")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_compressed_logs_are_read_by_content(tmp_path, pack):
    (tmp_path / "train.log.1").write_bytes(pack(b"step 1 loss 2.0\n" * 1000 + ERROR))
    assert solve(tmp_path)["guilty"]["rank"] == 3


def test_a_truncated_archive_gives_what_could_be_read(tmp_path):
    whole = gzip.compress(ERROR + random.Random(1).randbytes(100_000).replace(b"\0", b"x"))
    (tmp_path / "train.log.gz").write_bytes(whole[: len(whole) // 2])
    assert solve(tmp_path)["guilty"]["rank"] == 3


def test_a_sparse_file_is_skipped_to_its_tail(tmp_path):
    path = tmp_path / "huge.log"
    with path.open("wb") as stream:
        stream.truncate(10 << 30)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\n" + ERROR)
    start = time.perf_counter()
    assert solve(tmp_path)["guilty"]["rank"] == 3
    assert time.perf_counter() - start < 30


def test_a_line_without_end_is_cut(tmp_path):
    (tmp_path / "one.log").write_bytes(b"x" * (12 << 20) + b"\n" + ERROR)
    assert solve(tmp_path)["guilty"]["rank"] == 3


def test_terminal_escapes_and_html_reach_no_reader(tmp_path):
    (tmp_path / "evil\x1b[2J.log").write_bytes(
        ERROR.replace(b"'lr'", b"'\x1b]0;owned\x07<script>alert(1)</script> @here `rm`'")
    )
    answer = investigate([tmp_path])
    told = "\n".join(answer.lines("x", 0.1)) + str(answer.to_json())
    assert "\x1b" not in told
    post = render_post(answer, "x")
    assert "<script>" not in post and "@here" not in post and "`rm`" not in post


def test_a_post_has_twelve_lines_and_no_table(tmp_path):
    for number, key in enumerate(("gpu.ecc-uncorrectable", "none", "unknown.collective-timeout", "net.ib-link-flap")):
        folder = tmp_path / str(number)
        make(key, 0, folder)
        post = render_post(investigate([folder]), "the bundle")
        assert post.count("\n") <= 12 and len(post) < 2500, key
        assert "|" not in post


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch /nonexistent/owned",))


def test_a_pickle_is_never_run(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Bomb()], "version": "2.10"}))
    assert solve(tmp_path)["cause"] == "none"


def test_nothing_to_read_is_one_clear_line(tmp_path):
    with pytest.raises(EvidenceProblem, match="nothing to read"):
        investigate([tmp_path])
    with pytest.raises(EvidenceProblem, match="no such file"):
        investigate([tmp_path / "gone"])


def test_an_archive_is_read_back_with_the_same_answer(tmp_path):
    source = tmp_path / "logs"
    make("collective.mismatch-op", 0, source)
    manifest = write_archive([source], tmp_path / "case.tar.gz")
    assert any(f["binary"] for f in manifest["files"])
    assert solve(tmp_path / "case.tar.gz")["guilty"] == solve(source)["guilty"]
    with pytest.raises(UsageProblem, match="exists"):
        write_archive([source], tmp_path / "case.tar.gz")


def test_an_archive_hides_secrets_and_its_answer_too(tmp_path):
    source = tmp_path / "logs"
    source.mkdir()
    (source / "train.log").write_bytes(ERROR.replace(b"'lr'", b"'lr' HF_TOKEN=hf_abcdefghijklmnopqrst'"))
    assert "hf_abc" not in str(solve(source))
    write_archive([source], tmp_path / "case.tar.gz")
    with tarfile.open(tmp_path / "case.tar.gz") as archive:
        member = archive.extractfile("train.log")
        assert member is not None and b"hf_abc" not in member.read()


def test_a_changed_archive_is_refused(tmp_path):
    source = tmp_path / "logs"
    source.mkdir()
    (source / "train.log").write_bytes(ERROR)
    write_archive([source], tmp_path / "case.tar.gz")
    with tarfile.open(tmp_path / "case.tar.gz") as archive:
        manifest = archive.extractfile("manifest.json").read()
    with tarfile.open(tmp_path / "forged.tar.gz", "w:gz") as archive:
        for name, data in (("train.log", b"all is well\n"), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(EvidenceProblem, match="differs from the manifest"):
        investigate([tmp_path / "forged.tar.gz"])


def test_an_archive_cannot_leave_its_folder(tmp_path):
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("../escaped.log")
        info.size = len(ERROR)
        archive.addfile(info, io.BytesIO(ERROR))
    with pytest.raises(EvidenceProblem, match="cannot be read"):
        investigate([tmp_path / "evil.tar.gz"])
    assert not (tmp_path.parent / "escaped.log").exists()


def test_absolute_names_of_an_archive_are_read_below_its_folder(tmp_path):
    outside = tmp_path / "outside.log"
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo(str(outside))
        info.size, info.mtime = len(ERROR), 1_700_000_000
        archive.addfile(info, io.BytesIO(ERROR))
    found = solve(tmp_path / "logs.tar.gz")["cause"]
    assert not outside.exists()
    outside.write_bytes(ERROR)
    assert found == solve(outside)["cause"]


def test_any_cut_of_a_bundle_is_read(tmp_path):
    make("host.oom-killed", 2, tmp_path)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    catalogue = load_catalogue()
    assert catalogue.causes
    for cut in range(0, 100, 7):
        for path in files:
            raw = path.read_bytes()
            path.write_bytes(raw[: max(1, len(raw) * (100 - cut) // 100)])
        assert solve(tmp_path)["cause"] in catalogue.causes
