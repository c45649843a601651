"""Whole job files, good and bad, and what is said about each."""

from __future__ import annotations

import pytest

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.evidence import JobPlan
from ddaudit.findings import Finding, Status
from ddaudit.job import EXAMPLE, job_plan, parse_job
from ddaudit.runbook.model import PlannedStep

REGISTRY = packs.load(entries=False, environment=False).registry
STEP = PlannedStep(id="job", title="job", source="test", runbook="test", probe="job")


def judged(text: str) -> list[Finding]:
    """Findings of every check that reads job files."""
    plan = job_plan(parse_job(text, "job.toml"))
    mine = [c for c in REGISTRY.checks.values() if any(n.type.kind == JobPlan.kind for n in c.needs.values())]
    return [finding for spec in mine for finding in judge(spec, {JobPlan.kind: plan}, step=STEP)]


def bad(findings: list[Finding]) -> dict[str, str]:
    return {f.id: f.status.value for f in findings if f.status not in (Status.PASS, Status.SKIP)}


def of(findings: list[Finding], check: str) -> Finding:
    (found,) = [f for f in findings if f.check == check]
    return found


BASE = """
seq_len = 1024
dataset_samples = 1_048_576
optimizer = "adamw"
precision = "bf16-mixed"
device_memory_gib = 80
model = { layers = 32, hidden = 4096, heads = 32, ffn = 16384, vocab = 50304 }
"""

GOOD = {
    "the documented example": EXAMPLE,
    "sgd, 32 times the batch, lr times 32, 5 epochs of warm-up (Goyal et al. 2017)": """
        goal = "wall-clock"
        optimizer = "sgd"
        lr = 3.2
        micro_batch = 32
        dataset_samples = 1_281_167
        drop_last = true
        epochs = 90
        warmup_steps = 780
        schedule = "step"
        layout = { dp = 256 }
        baseline = { lr = 0.1, micro_batch = 32, epochs = 90, warmup_steps = 25_000, layout = { dp = 8 } }
        """,
    "tensor parallel inside sharded, for capacity": BASE + """
        goal = "capacity"
        micro_batch = 4
        layout = { sharded = 16, tp = 2 }
        """,
    "hybrid sharding, twice the batch, within tuning of the square-root rule": BASE + """
        goal = "larger-batch"
        micro_batch = 2
        lr = 4e-4
        warmup_steps = 2000
        layout = { dp = 2, sharded = 8 }
        baseline = { micro_batch = 2, lr = 3e-4, warmup_steps = 2000, layout = { sharded = 8 } }
        """,
    "a full pipeline to fit memory": BASE + """
        goal = "memory-fit"
        micro_batch = 1
        accumulation = 32
        layout = { pp = 4, tp = 2 }
        """,
    "experts across data ranks": """
        goal = "capacity"
        micro_batch = 2
        optimizer = "adamw"
        precision = "bf16-mixed"
        device_memory_gib = 80
        model = { layers = 16, hidden = 2048, heads = 16, vocab = 32000, experts = 16 }
        layout = { sharded = 16, ep = 8 }
        """,
    "accumulation alone for a larger batch": BASE + """
        goal = "larger-batch"
        micro_batch = 2
        accumulation = 4
        lr = 6e-4
        warmup_tokens = 4_000_000_000
        layout = { sharded = 8 }
        baseline = { micro_batch = 2, lr = 3e-4, warmup_tokens = 4_000_000_000, layout = { sharded = 8 } }
        """,
    "smaller micro-batches to fit activations": """
        goal = "memory-fit"
        micro_batch = 1
        accumulation = 8
        optimizer = "adamw"
        layout = { dp = 2 }
        baseline = { micro_batch = 8, layout = { dp = 2 } }
        """,
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_plan_has_no_finding_but_passes_and_skips(name: str):
    findings = judged(GOOD[name])
    assert bad(findings) == {}
    assert any(f.status is Status.PASS for f in findings)


def changed(*pairs: tuple[str, str]) -> str:
    """The example with lines changed."""
    text = EXAMPLE
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


TENSOR = [("sharded = 8  ", "sharded = 2  "), ("tp      = 1  ", "tp      = 4  ")]

BAD: dict[str, tuple[str, dict[str, str]]] = {
    "lr kept at four times the batch": (
        changed(("lr           = 6e-4", "lr           = 3e-4")),
        {"lr.not-matched-to-batch": "WARN"},
    ),
    "lr scaled linearly under AdamW": (
        changed(("lr           = 6e-4", "lr           = 1.2e-3")),
        {"lr.not-matched-to-batch": "WARN"},
    ),
    "square root under SGD": (changed(('"adamw"', '"sgd"')), {"lr.not-matched-to-batch": "WARN"}),
    "warm-up dropped": (changed(("warmup_steps = 500 ", "warmup_steps = 0 ")), {"lr.warmup-missing": "WARN"}),
    "warm-up shorter in steps and tokens": (
        changed(("warmup_steps = 500 ", "warmup_steps = 150 ")),
        {"lr.warmup-too-short": "WARN"},
    ),
    "the baseline's schedule kept for a quarter of the updates": (
        changed(("decay_steps  = 8192 ", "decay_steps  = 32768 ")),
        {"lr.decay-unfinished": "WARN"},
    ),
    "the schedule ends early": (
        changed(("decay_steps  = 8192 ", "decay_steps  = 2048 ")),
        {"lr.zero-before-end": "WARN"},
    ),
    "a stated batch of another size": (
        changed(("goal =", "global_batch = 512\ngoal =")),
        {"batch.effective-mismatch": "FAIL"},
    ),
    "a batch that does not divide": (
        "micro_batch = 8\nglobal_batch = 1000\nlayout = { dp = 3 }",
        {"job.batch-indivisible": "FAIL"},
    ),
    "tensor parallelism for a larger batch": (changed(*TENSOR), {
        "job.goal-not-served": "FAIL",
        "lr.not-matched-to-batch": "WARN",
        "lr.zero-before-end": "WARN",
        "lr.warmup-too-short": "WARN",
    }),
    "replicas for capacity, of a model that does not fit": (
        BASE + 'goal = "capacity"\nmicro_batch = 1\nlayout = { dp = 64 }',
        {"job.goal-not-served": "FAIL", "job.does-not-fit": "FAIL"},
    ),
    "optimizer states sharded, weights and gradients still leave no room": (
        "optimizer = 'adamw'\nprecision = 'bf16-mixed'\ndevice_memory_gib = 80\n"
        "model = { parameters = 18_000_000_000 }\nlayout = { sharded = 64, zero_stage = 1 }",
        {"job.memory-tight": "WARN"},
    ),
    "a pipeline of eight with two micro-batches": (
        BASE + "micro_batch = 1\naccumulation = 2\nlayout = { pp = 8 }",
        {"job.pipeline-bubble": "WARN"},
    ),
    "an idle pipeline to save time": (
        BASE + 'goal = "wall-clock"\nmicro_batch = 2\naccumulation = 1\nlayout = { pp = 4, dp = 2 }\n'
        "baseline = { micro_batch = 2, layout = { sharded = 4 } }",
        {"job.goal-not-served": "FAIL", "job.pipeline-bubble": "WARN"},
    ),
    "four times the batch over as many updates, to save time": (
        changed(("goal = \"larger-batch\" ", "goal = \"wall-clock\" "), ("epochs          = 2 ", "steps = 32768 "),
                ("decay_steps  = 8192 ", "decay_steps  = 32768 ")),
        {"job.goal-not-served": "FAIL"},
    ),
    "a world that the layout does not fill": (
        "layout = { world_size = 12, tp = 8 }", {"job.layout-mismatch": "FAIL"},
    ),
    "heads, feed-forward and sequence that do not divide": (
        "seq_len = 1000\nmodel = { hidden = 96, heads = 6, ffn = 386 }\nlayout = { tp = 4, cp = 3 }",
        {"job.heads-indivisible": "FAIL", "job.ffn-indivisible": "FAIL", "job.sequence-indivisible": "FAIL"},
    ),
    "key and value heads between the ranks": (
        "model = { heads = 24, kv_heads = 6 }\nlayout = { tp = 4 }", {"job.heads-indivisible": "FAIL"},
    ),
    "uneven stages": (
        "model = { layers = 30 }\nmicro_batch = 1\naccumulation = 64\nlayout = { pp = 4 }",
        {"job.layers-uneven": "WARN"},
    ),
    "ten experts over four ranks": (
        "model = { experts = 10 }\nlayout = { dp = 4, ep = 4 }", {"job.experts-indivisible": "FAIL"},
    ),
    "experts across more ranks than see data": (
        "model = { experts = 8 }\nlayout = { dp = 2, ep = 4, tp = 2 }", {"job.expert-ranks": "FAIL"},
    ),
    "a data set of less than one update": (
        "micro_batch = 8\naccumulation = 8\ndataset_samples = 500\nlayout = { dp = 8 }", {"job.no-update": "FAIL"},
    ),
    "short windows stepped as if full": (
        "micro_batch = 1\naccumulation = 16\ndataset_samples = 1000\nepochs = 3\nlast_window = 'step-as-full'",
        {"accum.window-crosses-epoch": "WARN"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_named_by_its_fault_and_by_nothing_else(name: str):
    text, expected = BAD[name]
    findings = judged(text)
    assert bad(findings) == expected
    for finding in findings:
        if finding.bad:
            assert finding.measured is not None and finding.unit and finding.limit_source, finding
            assert (finding.where.file or "").startswith("job.toml"), finding


def test_a_finding_points_at_the_line_that_must_change():
    text = changed(("lr           = 6e-4", "lr           = 3e-4"))
    found = of(judged(text), "lr.matches-batch")
    number = next(i for i, line in enumerate(text.split("\n"), 1) if line.startswith("lr "))
    assert (found.where.file, found.where.key) == (f"job.toml:{number}", "lr")
    assert found.limit == pytest.approx(6e-4) and "unchanged" in found.text


@pytest.mark.parametrize("check", ["lr.matches-batch", "lr.warmup-matches-batch"])
@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE.partition("[baseline]")[0],
        EXAMPLE.partition("[baseline]")[0] + "[baseline]\n",
        "lr = 1.0\nwarmup_steps = 0\nmicro_batch = 1",
        "",
    ],
)
def test_without_a_known_good_baseline_the_rate_is_not_measured(check: str, text: str):
    found = of(judged(text), check)
    assert found.status is Status.SKIP and "needs a known-good baseline" in found.text


def test_a_baseline_without_a_rate_is_not_measured_either():
    text = EXAMPLE.replace("lr           = 3e-4\n", "")
    assert of(judged(text), "lr.matches-batch").status is Status.SKIP


def test_a_baseline_of_another_model_gives_no_rate():
    found = of(judged(EXAMPLE + "[baseline.model]\nparameters = 125_000_000\n"), "lr.matches-batch")
    assert found.status is Status.SKIP and "1.25e+08 and 1.31e+09 parameters" in found.text


def test_longer_sequences_are_a_larger_batch_in_tokens():
    text = BASE + "goal = 'larger-batch'\nmicro_batch = 8\nbaseline = { micro_batch = 8, seq_len = 256 }"
    found = of(judged(text), "job.goal")
    assert found.status is Status.PASS and "grows 4x, from 2048 to 8192 tokens" in found.text


def test_no_rule_is_guessed_for_an_optimizer_without_a_published_one():
    found = of(judged(changed(('"adamw"', '"lion"'))), "lr.matches-batch")
    assert found.status is Status.SKIP and "no published rule" in found.text


def test_the_batch_is_told_with_its_factors_tokens_and_length():
    found = of(judged(EXAMPLE), "job.batch")
    assert "N * B_local * A = 8 * 8 * 4 = 256 samples, 524288 tokens" in found.text
    assert "4096 updates per epoch, 8192 in all" in found.text
    assert found.question == "batch" and found.measured == 256


def test_a_short_last_window_is_not_judged_until_the_file_says_what_becomes_of_it():
    text = "micro_batch = 1\naccumulation = 16\ndataset_samples = 1000\nepochs = 3\n"
    unsaid = of(judged(text), "job.accumulation")
    assert unsaid.status is Status.SKIP and "62 windows of 16, and 8 more" in unsaid.text
    for word in ("drop", "rescale"):
        assert of(judged(f"{text}last_window = '{word}'\n"), "job.accumulation").status is Status.PASS


def test_a_schedule_fault_answers_the_question_and_a_fitting_schedule_does_not():
    assert of(judged(EXAMPLE), "lr.schedule-fits").question is None
    late = changed(("decay_steps  = 8192 ", "decay_steps  = 2048 "))
    assert of(judged(late), "lr.schedule-fits").question == "lr"


def test_an_empty_file_gives_skips_and_no_verdict_on_anything_it_does_not_say():
    findings = judged("")
    assert bad(findings) == {}
    assert {f.check for f in findings if f.status is Status.PASS} <= {"job.layout", "job.pipeline"}
