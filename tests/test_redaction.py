"""A secret that was planted somewhere is nowhere in what ddaudit writes or prints, and honest words stay."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddaudit import redact
from ddaudit.cli.main import main
from ddaudit.evidence.events import EventWriter, read_stream
from ddaudit.redact import HIDDEN, redact_argv, redact_environment, redact_text, redact_value
from tests.engine.forks import Fork, ran

#: No shape gives these away: only the name of what held them, or the place they were found in, does.
PLAIN = {"DB_PASSWORD": "mellon-and-friend", "NCCL_AUTH_TOKEN": "opensesame4711"}
SHAPED = "ghp_abcdefghij0123456789"

PROBE = '''
from __future__ import annotations
import os
from pydantic import BaseModel, ConfigDict
from ddaudit.api import Measures, ProbeContext, probe

class P(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    token: str
    words: tuple[str, ...] = ()

@probe("leaky", produces=[Measures], params=P, where="host")
def leaky(context: ProbeContext, params: P) -> None:
    """Prints and raises whatever it was told in confidence."""
    told = f"{params.token} {os.environ['DB_PASSWORD']} {params.words}"
    context.measure("said", told)
    print("connecting with", told)
    raise RuntimeError(f"401 for {told}")
'''

PAGE = """# T

```toml runbook
id = "leak"
params.token = { type = "str" }
params.plain = { type = "str" }
```

```toml step fails
probe = "leaky"
with = { token = "$token", words = ["--api-key", "$plain"] }
checks = ["measures.*"]
remedy = "curl -H 'X: $token' http://u:hidden0password@host/"
```

```toml step prints
probe = "command"
with.argv = ["/bin/sh", "-c", "echo bw $$DB_PASSWORD; echo tokens=512 max_tokens: 4 author=Ann; echo $$0 >&2", "$token"]
with.env = ["DB_PASSWORD"]
with.capture.regex = { bw = 'bw (?P<value>\\\\S+)' }
checks = ["measures.*"]
```

```toml step asks
manual = "Is $token known?"
```
"""
TOKEN, WORD, KEY = "tell-nobody-0815", "plain-but-secret", "aB3-shapeless-key"


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fork, Path]:
    """A run that was told secrets in every way there is, and its folder."""
    folder = tmp_path_factory.mktemp("leak")
    (folder / "pack" / "probes").mkdir(parents=True)
    (folder / "pack" / "probes" / "leaky.py").write_text(PROBE)
    (folder / "leak.md").write_text(PAGE)

    def setup() -> None:
        os.environ.update(
            PLAIN, CUDA_NOTE=f"see {SHAPED}", SLURMD_NODENAME=f"node-{SHAPED}", PLAINLY_NOT_ALLOWED="xyzzy"
        )

    argv = ["run", str(folder / "leak.md"), "--pack", str(folder / "pack"), "--out", str(folder / "runs")]
    argv += ["-P", f"token={TOKEN}", "-P", f"plain={WORD}", "--device", "cpu", "--json"]
    argv += ["--report", "junit", "--report", "json", "--answers", "asks=fail"]
    run = ran(argv, folder / "first", setup=setup)
    assert run.wait() == 1, run.err
    return run, next((folder / "runs").iterdir())


@pytest.mark.parametrize("secret", [TOKEN, WORD, *PLAIN.values(), SHAPED, "hidden0password", "xyzzy"])
def test_a_secret_is_in_no_file_and_no_output(leak: tuple[Fork, Path], secret: str) -> None:
    run, folder = leak
    files = [p for p in folder.rglob("*") if p.is_file()]
    holding = [str(p.relative_to(folder)) for p in files if secret.encode() in p.read_bytes()]
    assert [name for name in holding if not name.startswith("logs/")] == []
    assert [str(p) for p in folder.rglob("*") if secret in p.name] == []
    assert secret not in run.out + run.err


def test_what_is_left_still_tells_what_happened(leak: tuple[Fork, Path]) -> None:
    run, folder = leak
    assert "RuntimeError: 401 for" in run.out and HIDDEN in run.out
    assert "tokens=512 max_tokens: 4 author=Ann" in (folder / "record.json").read_text()
    assert {p.name for p in folder.iterdir()} >= {"report.html", "report.md", "report.json", "junit.xml"}


def test_every_output_format_drawn_again_keeps_silent(leak: tuple[Fork, Path], tmp_path: Path) -> None:
    folder = leak[1]
    again = ran(["report", str(folder), "--rejudge", "--json", "--packs", "builtin"], tmp_path / "again")
    for secret in (TOKEN, WORD, *PLAIN.values(), SHAPED):
        assert secret not in again.out + again.err


def test_a_step_whose_secret_was_not_kept_says_so_when_resumed(leak: tuple[Fork, Path], tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(leak[1], tmp_path / "copy"))
    journal = folder / "events" / "run.jsonl"
    lines = [x for x in journal.read_text().splitlines(True) if '"id": "prints"' not in x and '"event": "end"' not in x]
    journal.write_text("".join(lines))
    again = ran(["run", "--resume", str(folder), "--json", "--no-progress"], tmp_path / "again")
    assert "a secret that this step was told is not kept in plan.json: start a new run" in again.out


def test_a_message_about_a_bad_call_hides_its_secret(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv in (
        ["run", "smoke", "-P", f"token={KEY}"],
        ["run", "smoke", "--api-key", KEY],
        ["show", f"--api-key={KEY}"],
    ):
        assert main([*argv, "--json"]) == 2
        printed = capsys.readouterr()
        assert KEY not in printed.out + printed.err, argv


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=abcd1234",
        "token: abcd1234",
        "--api-key abcd1234",
        "--my-password abcd1234",
        "Authorization: Bearer abcd1234",
        "Authorization: Token abcd1234",
        '{"client_secret": "abcd1234 with words"}',
        r"{\"token\": \"abcd1234\"}",
        "password='abcd1234 x'",
        "s3://user:abcd1234@host/bucket",
        "-----BEGIN RSA PRIVATE KEY-----\nabcd1234\n-----END RSA PRIVATE KEY-----",
        "hf_abcd1234abcd",
        "node-ghp_abcd1234abcd",
        "AWS_SECRET_ACCESS_KEY=abcd1234/x+y==",
    ],
)
def test_shapes_of_secrets_are_hidden(text: str) -> None:
    assert "abcd1234" not in redact_text(text) and HIDDEN in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens=512 max_tokens: 4 tokenizer=fast author=Ann",
        "token_embedding: shapes differ",
        "embed_tokens.weight = 3 of 4",
        "pad_token = <pad>, eos_token: </s>",
        "token = 7",
        "tokens_per_s=1e5 B_eff=8",
        "AUTHORS: Ann and Ben",
        "key=value, passed: yes, bypass=1",
        "monkey: banana, keyboard=de",
        "rank 3 at 10.0.0.1:29500 http://host:80/path",
    ],
)
def test_the_words_of_training_stay(text: str) -> None:
    assert redact_text(text) == text


def test_the_word_behind_a_telling_flag_is_hidden() -> None:
    assert redact_argv(["x", "--api-key", "k", "--n", "2", "-P", "token=abc"]) == [
        *("x", "--api-key", HIDDEN, "--n", "2", "-P"),
        f"token={HIDDEN}",
    ]


def test_only_listed_variables_are_kept() -> None:
    kept = redact_environment({"NCCL_DEBUG": "INFO", "NCCL_TOKEN": "abc", "HOME": "/root", "WANDB_API_KEY": "x"})
    assert kept == {"NCCL_DEBUG": "INFO", "NCCL_TOKEN": HIDDEN}


def test_values_are_redacted_however_deep_and_numbers_are_not() -> None:
    given = {"password": "abc", "ids": [1, 2, 3], "deep": [{"api_key": "x", "n": 1.5}], "argv": ["--token", "x"]}
    want = {"password": HIDDEN, "ids": [1, 2, 3], "deep": [{"api_key": HIDDEN, "n": 1.5}], "argv": ["--token", HIDDEN]}
    assert redact_value(given) == want


def test_an_event_file_never_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_known", {})
    redact.learn(["correct-horse", "short", "1234567890", str(tmp_path)])
    with EventWriter(tmp_path / "x.jsonl") as events:
        events.emit("error", message=f"no correct-horse, short 1234567890 {tmp_path}")
    (event,) = read_stream(tmp_path / "x.jsonl").events
    # Values that are short, a number or a path that exists are no secrets: they would take honest text along.
    assert event["message"] == f"no {HIDDEN}, short 1234567890 {tmp_path}"


HOSTILE: dict[str, Callable[[int], str]] = {
    "words": lambda n: "a-" * n,
    "dots": lambda n: "a." * n + "token",
    "flags": lambda n: "--token" * (n // 4),
    "spaces": lambda n: "token" + " " * n,
    "schemes": lambda n: "://a:" * (n // 4),
    "keys": lambda n: "-----BEGIN PRIVATE KEY" * (n // 16),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_time_in_proportion_to_its_length(name: str) -> None:
    def seconds(text: str) -> float:
        took = []
        for _ in range(5):
            began = time.process_time()
            redact_text(text)
            took.append(time.process_time() - began)
        return min(took)

    short, long = (seconds(HOSTILE[name](n)) for n in (4_000, 32_000))
    assert long < 32 * short + 0.05, (short, long)  # 8 in proportion, 64 when quadratic


def test_the_list_of_allowed_names_tells_of_no_secret() -> None:
    assert [n for n in redact.ALLOWED_NAMES if re.search(r"TOKEN|KEY|SECRET|PASS", n)] == []
