"""The terminal report."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from ddaudit.errors import UsageProblem
from ddaudit.findings import Status, Where
from ddaudit.report import Options, render
from tests.report import records

RUN = Path("/runs/1129-1402")


def test_the_first_line_is_the_verdict_with_place_duration_and_run() -> None:
    first = render(records.failed(), "text").splitlines()[0]
    assert first == "✖ FAIL  scale-out  2 ranks on node05 (cpu)  in 21.5 s  run 1129-1402"


def test_the_first_ten_lines_say_what_broke_and_what_to_do() -> None:
    quiet = render(records.failed(), "text", run_dir=RUN, verbosity=-1, width=200)
    labels = [line.split("  ")[0].strip() for line in quiet.splitlines()]
    assert labels[:5] == ["✖ FAIL", "Cause", "Why", "Also", "Do now"]
    assert "Unsure" in labels and "Report   /runs/1129-1402/report.html" in quiet
    assert len(quiet.splitlines()) <= 12
    assert "measured 0.25, limit 1e-10 (scale-out.md:40)" in quiet


def test_a_remedy_of_a_lesser_fault_names_that_fault() -> None:
    text = render(records.failed(), "text", verbosity=-1, width=200)
    assert "Do now   for sync.missing-on-step: Leave no_sync before the last micro-batch." in text
    assert "\n         grep -n no_sync train.py\n" in text


def test_unknown_lines_are_left_out() -> None:
    text = render(records.healthy(), "text", verbosity=-1)
    assert not re.search(r"^(Cause|Why|Do now|Since|Report)", text, re.M)
    assert "Passed   3 checks in 2 steps" in text


def test_eight_ranks_saying_the_same_become_one_entry() -> None:
    text = render(records.failed(), "text", width=200)
    assert text.count("✖ FAIL  sync.missing-on-step") == 1
    assert "ranks 0-7 on node05, step 4; measured 0 … 1 round, limit 1 round" in text


def test_failures_come_before_errors_before_warnings() -> None:
    text = render(records.failed(), "text", width=200)
    section = text.split("Did not pass")[1].split("Seven questions")[0]
    assert re.findall(r"^\S+ (FAIL|ERROR|WARN)", section, re.M) == ["FAIL", "FAIL", "ERROR", "WARN"]


def test_all_seven_questions_are_answered_by_name() -> None:
    for record in (records.healthy(), records.empty()):
        section = render(record, "text", width=200).split("Seven questions")[1].split("Not measured")[0]
        for id in ("loss", "batch", "lr", "accumulation", "sync", "checkpoint", "bottleneck"):
            assert re.search(rf"^\S+ \S+  {id}  \S", section, re.M), id


def test_not_measured_is_always_there_and_says_what_the_run_could_not_see() -> None:
    section = render(records.healthy(), "text", width=200).split("\nNot measured\n")[1]
    assert "the network between nodes  one host took part" in section
    assert "NCCL  ranks talked over gloo" in section
    assert "nothing" not in section
    assert "\nNot measured\n" in render(records.empty(), "text")


def test_an_interrupted_run_names_the_steps_it_did_not_reach() -> None:
    text = render(records.interrupted(), "text", width=200)
    assert text.startswith("‼ INTERRUPTED  scale-out")
    assert "step data  Ctrl-C after 3 s" in text
    assert "step tensor  planned, but the run ended before it" in text


def test_an_inconclusive_run_leads_with_what_could_not_be_measured() -> None:
    error = records.finding(Status.ERROR, "gpu.ecc", text="NVML refused", where=Where(host="node07"))
    warning = records.finding(Status.WARN, "bottleneck.input-bound", measured=0.4)
    text = render(records.record([warning, error]), "text", verbosity=-1)
    assert text.startswith("◌ INCONCLUSIVE")
    assert "Cause    node07: NVML refused\nWhy      gpu.ecc in step data; could not be measured\n" in text


def test_a_failed_run_that_was_cut_short_says_so() -> None:
    cut = records.failed().model_copy(update={"complete": False})
    assert "Partial  the run did not come to its end" in render(cut, "text", verbosity=-1)
    assert "Partial" not in render(records.failed(), "text", verbosity=-1)


def test_an_incident_gives_the_cause_who_and_first_action() -> None:
    incident = {
        "cause": "rank 3 ran out of memory",
        "confidence": "high",
        "guilty": {"rank": 3, "host": "node07", "gpu": None},
        "evidence": [{"file": "a.log", "line": 7, "text": "CUDA out of memory"}],
        "first_action": "Lower the micro-batch.",
    }
    text = render(records.record(extra={"incident": incident}), "text", verbosity=-1)
    for line in (
        "Cause    rank 3 ran out of memory",
        "Why      CUDA out of memory  confidence: high",
        "Who      rank 3, host node07",
        "Do now   Lower the micro-batch.",
    ):
        assert f"\n{line}\n" in text


def test_a_command_without_steps_claims_nothing_about_steps() -> None:
    for format in ("text", "md", "html"):
        text = render(records.audit(), format)
        assert "no step ran" not in text.lower() and "Steps" not in text
        assert "file __3_0.distcp" in text.replace("\\", "")


def test_an_empty_run_is_never_a_pass() -> None:
    text = render(records.empty(), "text")
    assert text.startswith("◌ INCONCLUSIVE")
    assert "PASS" not in text
    assert "nothing was judged" in text


def test_the_matrix_shows_equality_beside_throughput() -> None:
    section = render(records.healthy(), "text", width=200).split("Ready to scale?")[1]
    assert re.search(r"^data +data +2 +✔ done +✔ PASS 3.25e-16 +9120$", section, re.M)
    assert "scale out, as far as single and data at this size can tell" in section
    assert "do not scale out" in render(records.failed(), "text")


def test_key_numbers_of_a_step_show_equality_first_and_the_limits_source_when_verbose() -> None:
    brief, full = (render(records.healthy(), "text", width=200, verbosity=v).split("\nSteps\n")[1] for v in (0, 1))
    assert brief.index("parallel.equals-single: measured 3.25e-16, limit 1e-10\n") < brief.index("batch.effective:")
    assert "parallel.equals-single: measured 3.25e-16, limit 1e-10 (scale-out.md:40)\n" in full


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", ["healthy", "failed", "not_a_number", "interrupted", "empty"])
def test_lines_keep_to_the_width_except_what_is_for_copying(width: int, name: str) -> None:
    for line in render(getattr(records, name)(), "text", width=width, verbosity=1).splitlines():
        assert len(line) <= width or line.strip().startswith(("grep", "ddaudit")), line


def test_ascii_only_prints_no_other_character() -> None:
    for record in (records.failed(), records.hostile()):
        text = render(record, "text", ascii_only=True, verbosity=1, run_dir=RUN)
        assert text.isascii()
        assert "[FAIL]" in text and "[FAIL] FAIL" not in text


def test_no_escape_sequence_without_colour_and_only_colours_with_it() -> None:
    assert "\x1b" not in render(records.failed(), "text", verbosity=1)
    colored = render(records.hostile(), "text", color=True, verbosity=1)
    assert "\x1b[" in colored
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", colored)


def test_hostile_text_forges_no_line_and_carries_no_control() -> None:
    text = render(records.hostile(), "text", verbosity=1)
    assert all(line.isprintable() for line in text.splitlines())
    assert not re.search(r"^✔ PASS everything", text, re.M)
    assert "[red]markup[/red]" in text


def test_a_megabyte_in_every_string_gives_a_report_one_can_read() -> None:
    assert len(render(records.hostile("A" * 1_000_000), "text", verbosity=1)) < 200_000


def test_nan_and_infinity_are_words() -> None:
    text = render(records.not_a_number(), "text", verbosity=1, width=200)
    assert "measured NaN nat/token, limit Infinity nat/token" in text
    assert "measured -Infinity" in text


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UsageProblem, match="did you mean 'html'"):
        render(records.empty(), "htm")


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "color", "expected"),
    [
        ({}, "auto", True),
        ({"NO_COLOR": "1"}, "auto", False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, "auto", False),
        ({"TERM": "dumb"}, "auto", False),
        ({"NO_COLOR": "1"}, "always", True),
        ({}, "never", False),
    ],
)
def test_colour_follows_the_terminal_and_no_color(environ: dict[str, str], color: str, expected: bool) -> None:
    assert Options.terminal(Terminal(), environ, color)[1] is expected


def test_a_pipe_is_not_coloured_unless_forced() -> None:
    assert Options.terminal(io.StringIO(), {})[1] is False
    assert Options.terminal(io.StringIO(), {"FORCE_COLOR": "1"})[1] is True


def test_the_matrix_has_mfu_where_a_rate_of_products_in_the_steps_own_precision_was_measured() -> None:
    def shown(dtype: str) -> str:
        base = records.healthy()
        data = dict(base.steps[1].evidence["training"])
        data["job"] = {**data["job"], "dtype": "fp32", "flops_per_token": 1e6}
        rates = {"dtype": dtype, "matmuls": [{"flops_per_s": 5e9}, {"flops_per_s": 9.1205e9}]}
        steps = (
            base.steps[0].model_copy(update={"evidence": {**base.steps[0].evidence, "compute-costs": rates}}),
            base.steps[1].model_copy(update={"evidence": {"training": data}}),
        )
        return render(base.model_copy(update={"steps": steps}), "text", width=200)

    # 9120.5 tokens/s of 1e6 FLOPs each, on two ranks that could do 9.1205e9 each
    assert re.search(r"MFU", shown("fp32")) and re.search(r"data .* 50%", shown("fp32"))
    assert "MFU" not in shown("fp64")
    assert "no rate of matrix products" in render(records.healthy(), "text", width=200)
