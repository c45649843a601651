"""Tables of a trace from the ranks' records: packed or not, recorded once or twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ddaudit.evidence import TrainingTrace, read_streams
from ddaudit.evidence.events import StepValues


def read(folder: Path, *steps: dict[str, Any]) -> TrainingTrace:
    head = [
        {"event": "start", "t": 0.0, "rank": 0, "host": "n", "pid": 1},
        {"event": "rank", "t": 0.0, "place": {"rank": 0, "host": "n"}},
        {"event": "job", "t": 0.0, "job": {}},
    ]
    lines = head + [{"event": "step", "t": 1.0, **step} for step in steps]
    (folder / "n-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = TrainingTrace.assemble(read_streams(folder))
    assert trace is not None
    return trace


def row(trace: TrainingTrace, name: str) -> list[float]:
    table = trace.series(name)
    assert table is not None
    return [float(x) for x in table[0]]


def test_the_last_record_of_a_step_wins_name_by_name(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {"step": 0, "values": {"loss_nats": 4.0, "lr": 0.1}},
        {"step": 1, "values": {"loss_nats": 3.0, "lr": 0.1}},
        {"step": 1, "values": {"loss_nats": 2.5}},
        {"step": 0, "values": {"loss_nats": 4.5, "lr": 0.2}},
    )
    assert row(trace, "loss_nats") == [4.5, 2.5] and row(trace, "lr") == [0.2, 0.1]


def test_numbers_written_as_words_and_names_nobody_knows_pass(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {"step": 0, "values": {"loss_nats": "NaN", "not_a_series": [1]}},
        {"step": 1, "values": {"loss_nats": 3, "not_a_series": 10**400}},
        {"step": 2, "values": {"loss_nats": 2.0}, "sample_ids": [1, 2**70]},
    )
    assert np.isnan(row(trace, "loss_nats")[0]) and row(trace, "loss_nats")[1:] == [3.0, 2.0]


def test_steps_are_packed_and_ids_padded(tmp_path: Path) -> None:
    steps = [{"step": n, "values": {"loss_nats": n}, "sample_ids": list(range(n + 1))} for n in range(3)]
    trace = read(tmp_path, *steps)
    (stream,) = read_streams(tmp_path)
    assert all(isinstance(e["values"], StepValues) for e in stream.of("step"))
    assert trace.sample_ids is not None and trace.sample_ids[0].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
