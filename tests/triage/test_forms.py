"""The same facts in other forms give the same answer: whatever collected them."""

from __future__ import annotations

import zlib

import pytest

from ddaudit.triage.answer import investigate
from tests.triage.made.forms import FORMS
from tests.triage.made.label import SCENARIOS
from tests.triage.made.world import World

#: Scenarios that lean on one kind of file each. All of them in all forms: benchmarks/incident_forms.py.
KEYS = (
    "gpu.fell-off-bus", "host.oom-killed", "data.loader-stalled", "collective.mismatch-op", "app.exception",
    "sched.time-limit", "gpu.thermal-throttle",
)  # fmt: skip
#: Forms that concern files which a scenario may lack.
SPECIAL = {
    "cri": ("host.oom-killed/k8s",),
    "parted": ("sched.time-limit", "node.failed"),
    "cluster_shell": ("net.ib-link-flap",),
    "rulers": ("net.ib-link-flap", "several/fallen-gpu-and-slow-storage"),
    "split": ("gpu.pcie-degraded/lspci",),
}


@pytest.mark.parametrize(("name", "key"), [(n, k) for n in FORMS for k in SPECIAL.get(n, KEYS)])
def test_another_form_gives_the_same_answer(name, key, tmp_path):
    cause, scenario, shape = SCENARIOS[key]
    world = World(seed=zlib.crc32(key.encode()) + len(name), **shape)
    label = scenario(world)
    files = {n: c if isinstance(c, bytes) else c.encode() for n, c in world.files.items()}
    for path, content in FORMS[name](files).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    told = investigate([tmp_path]).to_json()
    assert told["cause"] in (cause, *label.accept)
    for field in ("rank", "host"):
        if (want := getattr(label, field)) is not None:
            assert told["guilty"].get(field) == want
    for cited in told["evidence"]:
        assert "::" not in cited["file"], "a part is cited by the file that holds it"
