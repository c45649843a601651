"""Training progress in logs: loss, step number, step time, data time, per-rank times, of the usual frameworks.

Forms: Megatron ``iteration 10/ 99 | ... | lm loss: 2.0E+00``, HF ``{'loss': 1.9, ...}``, Lightning and tqdm bars,
torchtitan ``step: 10  loss:  4.1``, DeepSpeed ``step=10, ... lr=``, JSON lines and plain ``step 10 loss 1.9 dt 6.0s``.
"""

from __future__ import annotations

import re

from ddaudit.evidence.incident import RankTimes, Step
from ddaudit.triage.readers.collect import spot
from ddaudit.triage.readers.lines import Line

__all__ = ["PROGRESS", "per_rank", "read_step"]

#: A line about progress, in small letters, holds one of these. Plain words: a pattern is ten times slower.
PROGRESS = (b"loss", b"step", b"iter", b"it/s", b"s/it", b"batch", b" ms", b"it=", b"it:", b"rank")

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|NaN|inf|-inf"
_STEP = re.compile(r"(?i)\b(?:global[_ ]?step|step|iteration|iter|it|batch)['\"]?[ :=]{1,3}(?P<step>\d+)")
_BAR = re.compile(
    r"\| *(?P<step>\d+)/(?P<all>\d+) \[[\d:]+<[\d:?]+, *(?P<n>[\d.]+) ?(?P<unit>s/it|it/s|batch/s|s/batch)"
)
_LOSS = re.compile(rf"(?i)\b(?:lm |train[_ /]?|total[_ ])?loss['\"]?[ :=|]{{1,4}}(?P<loss>{_NUMBER})")
_TIME = re.compile(
    r"(?i)(?:step[_ ]?time|iter(?:ation)?[_ ]?time|time[_ ]per[_ ](?:step|iter\w*)"
    r"|elapsed time per iteration(?: \((?P<u0>ms|s)\))?"
    r"|elapsed|\bdt|batch[_ ]?time|step_s|duration|time/(?:step|iter))['\"]?[ :=|]{1,3}(?P<t>[\d.]+) ?(?P<u>ms|s)?\b"
)
_RATE = re.compile(r"(?P<t>[\d.]+) ?(?P<u>ms|s)/(?:it|step|iter|batch)\b")
_DATA = re.compile(
    r"(?i)\b(?:data(?:loader|loading)?|load(?:er|ing)?|input|fetch)[_ -]?(?:time|wait|ms"
    r"|s)?['\"]?[ :=]{1,3}(?P<t>[\d.]+) ?(?P<u>ms|s)\b"
)
_OWN = re.compile(
    r"(?i)\b(?:compute|gpu|fwd(?:[_+]?bwd)?|forward(?:[_-]?backward)?|fb|h2d|copy|gemm)[_ -]?(?:time|ms"
    r"|s)?['\"]?[ :=]{1,3}(?P<t>[\d.]+) ?(?P<u>ms|s)\b"
)
_OWN_WAIT = re.compile(
    r"(?i)\b(?:(?:all_?reduce|comm|sync|collective|nccl|grad_?sync)(?:[_ -]?wait)?|wait)[_ -]?(?:time|ms"
    r"|s)?['\"]?[ :=]{1,3}(?P<t>[\d.]+) ?(?P<u>ms|s)\b"
)
_PAIR = re.compile(r"(?<![\w.:])(?:rank ?|r)?(?P<rank>\d{1,5}) ?[:=] ?(?P<value>\d+(?:\.\d+)?)(?![\d:/-])")
_WAIT = re.compile(r"(?i)(?:wait|allreduce|all_reduce|comm|sync|nccl)\w*")
_COMPUTE = re.compile(r"(?i)(?:compute|forward|backward|fwd|bwd|step|kernel|gemm|h2d|copy)\w*")


def read_step(line: Line, file: str) -> Step | None:
    """The training step on this line, or None."""
    body = line.body
    bar = _BAR.search(body)
    named = bar or _STEP.search(body)
    loss = _LOSS.search(body)
    if named is None and loss is None:
        return None
    seconds = _seconds(_TIME.search(body) or _RATE.search(body))
    if bar is not None:
        seconds = float(bar["n"]) if bar["unit"].startswith("s") else 1 / max(float(bar["n"]), 1e-9)
    step = int(named["step"]) if named is not None and len(named["step"]) < 16 else None
    value = float(loss["loss"]) if loss else None
    parts = [_seconds(form.search(body)) for form in (_DATA, _OWN, _OWN_WAIT)]
    if value is None and seconds is None and not any(parts):
        return None
    where = spot(file, line.number, line.text)
    return Step(line.rank, step, value, seconds, parts[0], where, line.stamp, parts[1], parts[2])


def _seconds(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    try:
        value = float(found["t"])
    except ValueError:
        return None
    unit = found.groupdict().get("u") or found.groupdict().get("u0")
    if unit is None and value > 100:
        unit = "ms"
    return value / 1000 if unit == "ms" else value


def per_rank(line: Line, file: str) -> list[RankTimes]:
    """Per-rank times on one line (``compute ms per rank: 0:170 1:171 (allreduce wait ms: 0:20 1:21)``)."""
    found: list[RankTimes] = []
    values: dict[int, float] = {}
    title = end = 0
    for pair in _PAIR.finditer(line.body):
        rank = int(pair["rank"])
        if rank in values:
            found += _times(line, file, title, values)
            title, values = end, {}
        values[rank] = float(pair["value"])
        end = pair.end()
    return found + _times(line, file, title, values)


def _times(line: Line, file: str, title: int, values: dict[int, float]) -> list[RankTimes]:
    if len(values) < 2:
        return []
    first = _PAIR.search(line.body, title)
    words = line.body[title : first.start() if first else len(line.body)]
    if _WAIT.search(words):
        return [RankTimes("wait", values, spot(file, line.number, line.text))]
    if _COMPUTE.search(words):
        return [RankTimes("compute", values, spot(file, line.number, line.text))]
    return []
