"""Bad input, one row each: what a page or a call may get wrong, and the one line that says so.

The comment ``#!`` in a page marks the line that the message must name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddaudit import packs
from ddaudit.cli.main import main
from ddaudit.errors import Exit
from ddaudit.packs import Packs

HEADER = 'id = "book"\n'
STEP = 'probe = "toy"\nchecks = ["toy.value"]\n'


def page(step: str = STEP, header: str = HEADER, more: str = "") -> str:
    return f"# Title\n\n```toml runbook\n{header}```\n\n## One\n\n```toml step one\n{step}```\n{more}"


def another(body: str, id: str = "two") -> str:
    return f"\n## Other\n\n```toml step {id}\n{body}```\n"


TRIAGE = HEADER + 'mode = "triage"\n'

#: name -> (page, part of the message)
PAGES: dict[str, tuple[str, str]] = {
    # -- Markdown
    "empty page": ("", "there is no fence 'toml runbook'"),
    "no step": ("# T\n\n```toml runbook #!\nid = 'book'\n```\n", "there is no step"),
    "second header": (page(more='\n```toml runbook #!\nid = "b"\n```\n'), "a second fence 'toml runbook'"),
    "misspelled fence": (page(more="\n```toml stpe x #!\n```\n"), "did you mean 'step'?"),
    "open fence": (page(more='\n```toml step two #!\nprobe = "toy"\n'), "the fence is not closed"),
    "step without id": (page(more="\n```toml step\n```\n"), "is no id"),
    "step id with a slash": (page(more=another("", "../evil")), "is no id"),
    "step id of two words": (page(more=another("", "a b")), "is no id"),
    "reserved step id": (page(more=another("", "stop")), "is reserved for edges"),
    "step id twice": (page(more="\n```toml step one #!\n" + STEP + "```\n"), "step 'one' exists twice"),
    # -- TOML
    "wrong TOML": (page(STEP + "timeout = #!\n"), "wrong TOML: Invalid value"),
    "text without quotes": (page(STEP + "remedy = look at it #!\n"), "wrong TOML"),
    "key twice": (page(STEP + "retries = 1\nretries = 2 #!\n"), "a key is set twice"),
    "inline key twice": (page(STEP + "with = { steps = 1, steps = 2 } #!\n"), "a key is set twice"),
    "table twice": (page(STEP + "[with]\n[with] #!\n"), "a key is set twice"),
    "header key twice": (page(header=HEADER + 'id = "b" #!\n'), "a key is set twice"),
    # -- header
    "no id": (page(header='title = "x"\n'), "'id' is missing"),
    "id with a space": (page(header='id = "a b" #!\n'), "lower-case letters"),
    "unknown header key": (
        page(header=HEADER + 'moed = "sweep" #!\n'),
        "unknown key 'moed'; fix: did you mean 'mode'?",
    ),
    "unknown mode": (page(header=HEADER + 'mode = "walk" #!\n'), "'sweep' or 'triage'"),
    "budget no duration": (page(header=HEADER + 'budget = "soon" #!\n'), "'soon' is no duration; write 90s, 2m or 1h"),
    "budget of nothing": (page(header=HEADER + "budget = 0 #!\n"), "out of range"),
    "budget too small": (page(header=HEADER + 'budget = "10s" #!\n'), "add up to 120 s, more than the budget of 10 s"),
    "start in a sweep": (page(header=HEADER + 'start = "one" #!\n'), "a sweep has no start"),
    "start names no step": (page(header=TRIAGE + 'start = "oen" #!\n'), "did you mean 'one'?"),
    "param of unknown type": (
        page(header=HEADER + 'params.n = { type = "number" } #!\n'),
        "'int', 'float', 'str' or 'bool'",
    ),
    "param with unknown key": (
        page(header=HEADER + "params.n = { defualt = 1 } #!\n"),
        "unknown key 'params.n.defualt'",
    ),
    "default of wrong type": (
        page(header=HEADER + 'params.n = { type = "int", default = "x" } #!\n'),
        "'x' is no whole number",
    ),
    "default out of bounds": (
        page(header=HEADER + 'params.n = { type = "int", default = 9, max = 4 } #!\n'),
        "9 is above the maximum 4",
    ),
    "default no choice": (page(header=HEADER + 'params.n = { default = "c", choices = ["a"] } #!\n'), "none of a"),
    # -- step
    "unknown step key": (page(STEP + 'probes = "toy" #!\n'), "unknown key 'probes'; fix: did you mean 'probe'?"),
    "neither probe nor manual": (page('checks = ["toy.value"]\n'), "neither 'probe' nor 'manual'"),
    "probe and manual": (page(STEP + 'manual = "ok?"\n'), "both 'probe' and 'manual'"),
    "unknown probe": (page('probe = "tyo" #!\n'), "no probe is called 'tyo'; fix: did you mean 'toy'?"),
    "unknown check": (
        page('probe = "toy"\nchecks = ["toy.valeu"] #!\n'),
        "no check is called 'toy.valeu'; fix: did you mean 'toy.value'?",
    ),
    "glob without a check": (page('probe = "toy"\nchecks = ["tyo.*"] #!\n'), "no check matches 'tyo.*'"),
    "check of other evidence": (
        page('probe = "toy"\nchecks = ["toy.trace"] #!\n'),
        "probe 'toy' does not record what 'toy.trace' asks for (training)",
    ),
    "check that compares with nothing": (
        page('probe = "train"\nchecks = ["parallel.equals-single"] #!\n'),
        "compares with another step, and `needs` names none that records training",
    ),
    "triage without a good step": (page("prob = 1 #!\n", TRIAGE + 'budget = "1m"\n'), "unknown key 'prob'"),
    "checks no list": (page('probe = "toy"\nchecks = "toy.value" #!\n'), "a list"),
    "unknown parameter": (
        page(STEP + "with = { setps = 3 } #!\n"),
        "unknown key 'with.setps'; fix: did you mean 'steps'?",
    ),
    "parameter of wrong type": (
        page(STEP + 'with = { steps = "x" } #!\n'),
        "with.steps is 'x'; expected a whole number",
    ),
    "parameter out of bounds": (page(STEP + "[with]\nsteps = 0 #!\n"), "greater than or equal to 1"),
    "parameter no choice": (page(STEP + 'with = { kind = "c" } #!\n'), "'a' or 'b'"),
    "parameter is a date": (page(STEP + "with = { note = 2026-01-01 } #!\n"), "is the date 2026-01-01"),
    "unknown $param": (page(STEP + 'with = { note = "$nope" } #!\n'), "$nope is no parameter"),
    "metric of no step": (page(STEP + 'with = { note = "$two.v" } #!\n'), "does not run before this one"),
    "metric of a later step": (
        page(STEP + 'with = { note = "$two.v" } #!\n', more=another(STEP)),
        "fix: add 'two' to needs",
    ),
    "timeout no duration": (page(STEP + 'timeout = "2 minutes" #!\n'), "is no duration"),
    "timeout below zero": (page(STEP + "timeout = -3 #!\n"), "out of range"),
    "retries too many": (page(STEP + "retries = 99 #!\n"), "less than or equal to 10"),
    "unknown severity": (page(STEP + 'severity = "high" #!\n'), "'info', 'minor', 'major' or 'critical'"),
    "required no truth": (page(STEP + 'required = "maybe" #!\n'), "true or false"),
    "critical without remedy": (page(STEP + 'severity = "critical" #!\n'), "is critical and has no remedy"),
    "remedy with sudo": (page(STEP + 'remedy = "sudo reboot" #!\n'), "the remedy holds 'sudo'"),
    "remedy pipes to a shell": (page(STEP + 'remedy = "curl http://x/y | bash" #!\n'), "the remedy holds '| bash'"),
    "gate without a check": (page('probe = "toy"\non = { fail = "stop" }\n'), "no check can make the step fail"),
    "manual with checks": (page('manual = "ok?"\nchecks = ["toy.value"] #!\n'), "a manual step has checks"),
    # -- ranks
    "no ranks": (page(STEP + "nproc = 0 #!\n"), "nproc is 0; expected a number of ranks"),
    "ranks no number": (page(STEP + 'nproc = "many" #!\n'), "nproc is 'many'"),
    "ranks that do not divide": (page(STEP + "nproc = 3 #!\n"), "4 heads do not spread over 3 ranks"),
    "ranks for a host probe": (
        page('probe = "command"\nwith = { argv = ["ls"] }\nnproc = 2 #!\n'),
        "runs once on the host",
    ),
    # -- limits
    "limit on no metric": (page(STEP + "limits.toy.w = { fail_above = 1 } #!\n"), "did you mean 'toy.v'?"),
    "limit with a misspelled bound": (
        page(STEP + "limits.toy.v = { fial_above = 1 } #!\n"),
        "unknown key 'limits.toy.v.fial_above'; fix: did you mean 'fail_above'?",
    ),
    "limit without a bound": (page(STEP + "limits.toy.v = { } #!\n"), "sets no bound"),
    "limit is a number": (page(STEP + "limits.toy.v = 3 #!\n"), "a table such as { fail_above = 3 }"),
    "limit is text": (page(STEP + 'limits.toy.v = { fail_above = "much" } #!\n'), "a number"),
    "limit on a metric of a later moment": (
        page(STEP + 'needs = ["two"]\nlimits.toy.v = { fail_above = "$two.v" } #!\n', more=another(STEP)),
        "known only when the step starts",
    ),
    "limit on an undeclared measure": (
        page(
            'probe = "command"\nchecks = ["measures.within-limits"]\n'
            'with = { argv = ["ls"], capture = { json = { busbw = "a" } } }\nlimits.busbv = { fail_below = 1 } #!\n'
        ),
        "did you mean 'busbw'?",
    ),
    "limit on a measure that nothing judges": (
        page(
            'probe = "command"\nwith = { argv = ["ls"], capture = { json = { bw = "a" } } }\n'
            "limits.bw = { fail_below = 1 } #!\n"
        ),
        'add "measures.within-limits" to checks',
    ),
    # -- command
    "command as one word": (page('probe = "command"\nwith = { argv = ["ls -l"] } #!\n'), "no shell splits it"),
    "command without words": (page('probe = "command"\n[with]\nargv = [] #!\n'), "at least 1 item"),
    "pattern is none": (
        page('probe = "command"\n[with]\nargv = ["ls"]\ncapture.regex.x = "(" #!\n'),
        "is no regular expression",
    ),
    # -- when
    "when cannot be read": (page(STEP + 'when = "gpus >>= 2" #!\n'), "when: "),
    "when ends early": (page(STEP + 'when = "gpus >=" #!\n'), "ends too early"),
    "when with an open parenthesis": (page(STEP + 'when = "(gpus > 1" #!\n'), "ends too early"),
    "when calls a function": (page(STEP + 'when = "exit()" #!\n'), "did not expect '('"),
    "when reads an attribute": (page(STEP + 'when = "gpus.__class__" #!\n'), "cannot read"),
    "when with an unknown fact": (
        page(STEP + 'when = "gpu >= 2" #!\n'),
        "there is no fact 'gpu'; fix: did you mean 'gpus'?",
    ),
    "when compares unlike things": (page(STEP + "when = \"gpus == 'two'\" #!\n"), "compares a number with a text"),
    "when orders texts": (page(STEP + "when = \"device > 'cpu'\" #!\n"), "> needs numbers"),
    # -- flow
    "need names no step": (page(STEP + 'needs = ["tow"] #!\n', more=another(STEP)), "did you mean 'two'?"),
    "step needs itself": (page(STEP + 'needs = ["one"] #!\n'), "goes round in a circle: one -> one"),
    "needs in a circle": (
        page(STEP + 'needs = ["two"] #!\n', more=another(STEP + 'needs = ["one"]\n')),
        "goes round in a circle: one -> two -> one",
    ),
    "edge in a sweep": (page(STEP + 'on = { fail = "two" } #!\n', more=another(STEP)), "a sweep does not walk edges"),
    "edge to no step": (page(STEP + 'on = { fail = "tow" } #!\n', TRIAGE, another(STEP)), "did you mean 'two'?"),
    "edge to no runbook": (page(STEP + 'on = { fail = "runbook:smok" } #!\n', TRIAGE), "did you mean 'smoke'?"),
    "unknown outcome": (
        page(STEP + 'on = { failed = "stop" } #!\n'),
        "unknown key 'on.failed'; fix: did you mean 'fail'?",
    ),
    "edges in a circle": (
        page(STEP, TRIAGE, another(STEP + 'on = { fail = "one" }\n')),
        "`on` goes round in a circle: one -> two -> one",
    ),
    "unreachable step": (
        page(
            STEP + 'on = { pass = "stop", warn = "stop", fail = "stop", error = "stop", skip = "stop" }\n',
            TRIAGE,
            "\n```toml step two #!\n" + STEP + "```\n",
        ),
        "no walk from the start reaches this step",
    ),
}


def test_the_good_page_is_clean(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.md"
    book.write_text(page())
    assert main(["lint", str(book), "--pack", str(pack)]) == Exit.PASS
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", PAGES)
def test_a_bad_page_is_refused_in_one_line(
    name: str, loaded: Packs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "load", lambda *_, **__: loaded)
    text, message = PAGES[name]
    book = tmp_path / "book.md"
    marked = next((n for n, line in enumerate(text.splitlines(), 1) if line.endswith("#!")), None)
    # A mark on a fence's own line would be part of its id.
    book.write_text(
        "\n".join(line.removesuffix(" #!") if line.startswith("```") else line for line in text.splitlines())
    )
    assert main(["lint", str(book)]) == Exit.USAGE
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if message in line]
    assert found, lines
    assert all(line.startswith(f"{book}:") and "Traceback" not in line for line in lines)
    if marked is not None:
        assert found[0].startswith(f"{book}:{marked}: "), (marked, found[0])


#: name -> (arguments of `ddaudit run`, part of the message)
CALLS: dict[str, tuple[list[str], str]] = {
    "unknown runbook": (["boko"], "no runbook is called 'boko'"),
    "missing file": (["nowhere/book.md"], "no runbook is called 'nowhere/book.md'"),
    "unknown param": (["smoke", "-P", "rank=2"], "has no parameter 'rank'; fix: did you mean 'ranks'?"),
    "param without value": (["smoke", "-P", "ranks"], "expected name=value"),
    "param twice": (["smoke", "-P", "ranks=1", "-P", "ranks=2"], "is given twice"),
    "param of wrong type": (["smoke", "-P", "ranks=two"], "'two' is no whole number"),
    "param too small": (["smoke", "-P", "ranks=0"], "0 is below the minimum 1"),
    "param too large": (["smoke", "-P", "ranks=9999"], "9999 is above the maximum 1024"),
    "param no choice": (["scale-out", "-P", "preset=huge"], "'huge' is none of tiny, small, medium, large"),
    "batch that does not divide": (["scale-out", "-P", "ranks=3"], "set global_batch to a multiple of"),
    "only nothing": (["smoke", "--only", "sinlge"], "did you mean 'single'?"),
    "skip nothing": (["smoke", "--skip", "x*"], "has no such step"),
    "skip everything": (["smoke", "--skip", "*"], "leave no step"),
    "skip what others need": (["smoke", "--skip", "single"], "add --skip data"),
    "start in a sweep": (["smoke", "--start", "data"], "use --only data"),
    "unknown flag": (["smoke", "--frobnicate"], "No such option"),
    "unknown device": (["smoke", "--device", "tpu"], "'tpu' is not one of"),
    "pack that is not there": (["smoke", "--pack", "/no/such/pack"], "/no/such/pack: no such folder"),
    "pack against builtin": (["smoke", "--pack", ".", "--packs", "builtin"], "contradict each other"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_launches_nothing(
    name: str, loaded: Packs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = CALLS[name]
    monkeypatch.chdir(tmp_path)
    if not any(word.startswith("--pack") for word in arguments):
        monkeypatch.setattr(packs, "load", lambda *_, **__: loaded)
    assert main(["run", *arguments, "--out", str(tmp_path / "runs")]) == Exit.USAGE
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


#: name -> (path in the pack, text, part of the message)
PACKS: dict[str, tuple[str, str, str]] = {
    "syntax error": ("checks/bad.py", "def broken(:\n", "SyntaxError"),
    "missing module": ("checks/bad.py", "import no_such_module\n", "No module named 'no_such_module'"),
    "error on import": ("probes/bad.py", "\n1 / 0\n", "bad.py:2: did not import: ZeroDivisionError"),
    "check without a plant": (
        "checks/bad.py",
        "from ddaudit.api import Measures, check, ok\n"
        "@check('bad.x', asks='?')\ndef x(measures: Measures):\n    yield ok('')\n",
        "check 'bad.x' has no plant",
    ),
    "plant with an unknown probe": (
        "checks/bad.py",
        "from ddaudit.api import Measures, Plant, check, ok\n"
        "@check('bad.x', asks='?', plant=Plant('p', 'bad.y', probe='tarin', planted={'a': 1}))\n"
        "def x(measures: Measures):\n    yield ok('')\n",
        "did you mean 'train'?",
    ),
    "plant with unknown parameters": (
        "checks/bad.py",
        "from ddaudit.api import Measures, Plant, check, ok\n"
        "plant = Plant('p', 'bad.y', probe='command', params={'argv': ['ls']}, planted={'a': 1})\n"
        "@check('bad.x', asks='?', plant=plant)\n"
        "def x(measures: Measures):\n    yield ok('')\n",
        "planted parameters: unknown key 'a'",
    ),
    "plant that plants nothing": (
        "checks/bad.py",
        "from ddaudit.api import Measures, Plant, check, ok\n"
        "@check('bad.x', asks='?', plant=Plant('p', 'bad.y', probe='command', params={'argv': ['ls']}))\n"
        "def x(measures: Measures):\n    yield ok('')\n",
        "plants nothing",
    ),
    "unknown question": (
        "checks/bad.py",
        "from ddaudit.api import Measures, check, ok\n"
        "@check('bad.x', asks='?', question='speed')\ndef x(measures: Measures):\n    yield ok('')\n",
        "names question 'speed'",
    ),
    "argument that is no evidence": (
        "checks/bad.py",
        "from ddaudit.api import check, ok\n@check('bad.x', asks='?')\ndef x(measures: int):\n    yield ok('')\n",
        "expected an Evidence type, or one Limits type",
    ),
    "check id of ours": (
        "checks/bad.py",
        "from ddaudit.api import Measures, check, ok\n"
        "@check('loss.finite', asks='?')\ndef x(measures: Measures):\n    yield ok('')\n",
        "check 'loss.finite' is declared twice",
    ),
    "runbook id of ours": ("runbooks/smoke.md", "# Mine\n", "runbook 'smoke' exists twice"),
    "runbook under another name": ("runbooks/mine.md", page().replace('"toy"', '"command"'), "id is 'book'"),
    "runbook that is no text": ("runbooks/mine.md", "\udcff", "is not UTF-8 text"),
}


@pytest.mark.parametrize("name", PACKS)
def test_a_bad_pack_is_told_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text, message = PACKS[name]
    file = tmp_path / "bad-pack" / path
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert main(["lint", str(tmp_path / "bad-pack")]) == Exit.USAGE
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert message in said and str(file) in said and "Traceback" not in said


def test_a_check_missing_because_its_file_broke_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in (
        ("checks/mine.py", "import nothing_like_this\n"),
        ("runbooks/book.md", page('probe = "command"\nwith = { argv = ["ls"] }\nchecks = ["mine.x"]\n')),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert main(["run", "book", "--pack", str(tmp_path), "--out", str(tmp_path / "runs")]) == Exit.USAGE
    assert "mine.py:1, which did not import (ModuleNotFoundError" in capsys.readouterr().err


def test_a_huge_page_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.md"
    book.write_text("x" * (2 << 20))
    assert main(["lint", str(book)]) == Exit.USAGE
    assert "is too large for a runbook" in capsys.readouterr().out


def test_deeply_nested_input_ends_in_a_message(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.md"
    for step in (STEP + f"with = {{ note = {'[' * 5000}1{']' * 5000} }}\n", STEP + f'when = "{"not " * 5000}slurm"\n'):
        book.write_text(page(step))
        assert main(["lint", str(book), "--pack", str(pack)]) == Exit.USAGE
        assert len(capsys.readouterr().out) < 2000


def test_every_mistake_is_listed_not_only_the_first(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.md"
    book.write_text(page(STEP + 'needs = ["x"]\nwhen = "gpu"\nnproc = 3\n', HEADER, another('probe = "tyo"\n')))
    assert main(["lint", str(book), "--pack", str(pack)]) == Exit.USAGE
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["run", str(book), "--pack", str(pack), "--out", str(tmp_path / "r")]) == Exit.USAGE
    assert "3 more; see `ddaudit lint" in capsys.readouterr().err


def test_no_control_character_of_a_page_reaches_the_terminal(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.md"
    book.write_text(page('probe = "t\\u001b[31my"\n'))
    assert main(["lint", str(book), "--pack", str(pack)]) == Exit.USAGE
    assert "\x1b" not in capsys.readouterr().out


def test_there_are_more_than_sixty_kinds_of_bad_input() -> None:
    assert len(PAGES) + len(CALLS) + len(PACKS) >= 110
