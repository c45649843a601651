"""The tutorial of docs/tutorial-watch.md, followed to the letter."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "tutorial-watch.md").read_text()
FILE = re.search(r"^`train\.py`:\n\n```python\n(.*?)^```$", PAGE, flags=re.S | re.M)
SESSIONS = re.findall(r"^```console\n(.*?)^```$", PAGE, flags=re.S | re.M)


def run(command: str, folder: Path) -> tuple[int, str]:
    words = shlex.split(command)
    if words[0] == "ddaudit":
        words[:1] = [
            sys.executable,
            "-c",
            "import sys; from ddaudit.cli.main import main; sys.exit(main(sys.argv[1:]))",
        ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "240", "PATH": path}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    return done.returncode, done.stdout + done.stderr


def test_the_tutorial_works_as_written(tmp_path: Path):
    assert FILE is not None
    (tmp_path / "train.py").write_text(FILE[1])
    for line in (line for session in SESSIONS for line in session.splitlines()):
        if line.startswith("$ "):
            command, _, promise = line[2:].partition("  # exit ")
            code, output = run(command, tmp_path)
            assert code == int(promise or 0), f"{command}\n{output}"
        else:
            assert " ".join(line.split()) in " ".join(output.split()), f"{line!r} not in\n{output}"
