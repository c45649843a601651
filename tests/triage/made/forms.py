"""Other forms of one bundle: the same facts as other collectors write them. None of them may change the answer."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePath

__all__ = ["FORMS", "Files"]

Files = dict[str, bytes]
Form = Callable[[Files], Files]
FORMS: dict[str, Form] = {}

_KERNEL = re.compile(r"(?i)dmesg|kern\.log|journalctl")
_STAMP = re.compile(
    rb"^(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[,.](?P<f>\d+)\+0?0:?00 (?:(?P<host>\S+) kernel: )?(?:\[[\d.]+\] )?"
)
_SLURM = re.compile(rb"^(?P<task>\d+): ")


def form(function: Form) -> Form:
    FORMS[function.__name__] = function
    return function


@form
def flat(files: Files) -> Files:
    """One folder without subfolders; paths become names."""
    return {name.replace("/", "__"): data for name, data in files.items()}


@form
def packed(files: Files) -> Files:
    """One archive made with tar, one folder deep."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"evidence/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return {"evidence.tar.gz": raw.getvalue()}


@form
def zipped(files: Files) -> Files:
    """Every text is a .gz of its own."""
    return {
        name if b"\0" in data else f"{name}.gz": data if b"\0" in data else gzip.compress(data)
        for name, data in files.items()
    }


@form
def windows(files: Files) -> Files:
    """A round trip through a ticket system: CRLF and a byte-order mark."""
    return {n: d if b"\0" in d else b"\xef\xbb\xbf" + d.replace(b"\n", b"\r\n") for n, d in files.items()}


@form
def deep(files: Files) -> Files:
    """Two folders deeper, with a date and a ticket in front."""
    return {f"INC-20481/2026-02-03/{name}": data for name, data in files.items()}


@form
def noisy(files: Files) -> Files:
    """Files that people add: notes, an environment, a requirements list, a script, a configuration."""
    return {
        **files,
        "README.txt": b"Collected by the on-call person. Job looked stuck, then died. Please have a look.\n",
        "env.txt": b"NCCL_DEBUG=INFO\nNCCL_TIMEOUT=1800\nOMP_NUM_THREADS=8\nPYTHONFAULTHANDLER=1\n",
        "pip-freeze.txt": b"numpy==1.26.4\ntransformers==4.44.0\nsafetensors==0.4.3\nwandb==0.17.0\n",
        "train.py": b"try:\n    step()\nexcept RuntimeError:\n    raise RuntimeError('CUDA error: out of memory')\n",
        "config.yaml": b"lr: 3.0e-4\nwarmup: 2000\ntimeout_s: 1800\ncheckpoint:\n  every: 500\n  on_failure: retry\n",
    }


@form
def cri(files: Files) -> Files:
    """Job logs as the container runtime keeps them on the node: time, stream and flag before each line."""
    out: Files = {}
    for name, data in files.items():
        if not re.search(r"kubectl-logs-(?P<pod>[\w-]+)\.txt$", name):
            out[name] = data
            continue
        pod = PurePath(name).name.removeprefix("kubectl-logs-").removesuffix(".txt")
        lines = [re.sub(rb"^(\S+Z) ", rb"\1 stderr F ", line) for line in data.split(b"\n")]
        out[f"var/log/pods/ml_{pod}_1f0c9d52-6c1b-4c0e-9a0d-0f3f6b1a2c3d/pytorch/0.log"] = b"\n".join(lines)
    return out


@form
def journal_json(files: Files) -> Files:
    """Kernel logs with ISO times as ``journalctl -k -o json``."""
    return {name: _journal(name, data) if _KERNEL.search(name) else data for name, data in files.items()}


def _journal(name: str, data: bytes) -> bytes:
    rows = []
    for line in data.split(b"\n"):
        if found := _STAMP.match(line):
            host = (found["host"] or re.sub(r"(?:var/log/)|(?:/kern\.log)|(?:\.dmesg)", "", name).encode()).decode()
            moment = datetime.fromisoformat(found["iso"].decode()).replace(tzinfo=UTC).timestamp()
            rows.append(
                json.dumps({
                    "__REALTIME_TIMESTAMP": str(int(moment * 1e6)), "_TRANSPORT": "kernel", "_HOSTNAME": host,
                    "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": line[found.end():].decode(), "PRIORITY": "4",
                })
            )  # fmt: skip
        else:
            return data
    return "\n".join(rows).encode() + b"\n"


@form
def cluster_shell(files: Files) -> Files:
    """Kernel logs of all hosts gathered by ``clush`` or ``pdsh`` into one file, the host before each line."""
    rows, out = [], {}
    for name, data in files.items():
        host = re.search(r"(?:dmesg-(?P<a>[\w-]+)\.txt|(?P<b>[\w-]+)\.dmesg)$", name)
        if host is None:
            out[name] = data
            continue
        label = (host["a"] or host["b"]).encode()
        rows += [label + b": " + line for line in data.split(b"\n") if line]
    return {**out, "dmesg_all_nodes.txt": b"\n".join(rows) + b"\n"} if rows else out


@form
def split(files: Files) -> Files:
    """Long logs are rotated: the older half has the number 1."""
    out: Files = {}
    for name, data in files.items():
        lines = data.split(b"\n")
        if name.endswith((".out", "train.log", "torchrun.log")) and len(lines) > 30:
            half = len(lines) // 3
            out[f"{name}.1"] = b"\n".join(lines[:half]) + b"\n"
            out[name] = b"\n".join(lines[half:])
        else:
            out[name] = data
    return out


@form
def parted(files: Files) -> Files:
    """srun wrote one file a task (``%j_%t``) instead of labels."""
    out: Files = {}
    for name, data in files.items():
        if not re.fullmatch(r"slurm-\d+\.out", name):
            out[name] = data
            continue
        for line in data.split(b"\n"):
            found = _SLURM.match(line)
            part = f"{name[:-4]}_{found['task'].decode()}.out" if found else name
            out[part] = out.get(part, b"") + (line[found.end() :] if found else line) + b"\n"
    return out


@form
def coloured(files: Files) -> Files:
    """Taken from a terminal with ``script``: every line of the job's output in colours, with a carriage return."""
    out: Files = {}
    for name, data in files.items():
        if name.endswith(("train.log", ".out")) and b"\0" not in data:
            out[name] = b"\n".join(b"\x1b[38;5;9m" + line + b"\x1b[0m\r" for line in data.split(b"\n"))
        else:
            out[name] = data
    return out


@form
def wide(files: Files) -> Files:
    """Texts that went through PowerShell: UTF-16 with a byte-order mark."""
    return {n: d if b"\0" in d else d.decode("utf-8", "replace").encode("utf-16") for n, d in files.items()}


@form
def tails(files: Files) -> Files:
    """``tail -n +1 *`` of every text into one file."""
    texts = {n: d for n, d in files.items() if b"\0" not in d}
    joined = b"\n".join(b"==> %s <==\n%s" % (n.encode(), d) for n, d in texts.items())
    return {**{n: d for n, d in files.items() if n not in texts}, "everything.txt": joined}


@form
def rulers(files: Files) -> Files:
    """Kernel logs and tables of all nodes as ``clush -b`` prints them: a host between rulers, then its lines."""
    out: Files = {}
    for name, data in files.items():
        host = re.search(r"(?:dmesg-(?P<a>[\w-]+)\.txt|(?P<b>[\w-]+)\.(?:dmesg|kern\.log))$", name)
        if host is None:
            out[name] = data
            continue
        label = (host["a"] or host["b"]).encode()
        out["nodes.dmesg"] = out.get("nodes.dmesg", b"") + b"---------------\n%s\n---------------\n%s" % (label, data)
    return out
