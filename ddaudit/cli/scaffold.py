"""The files that ``ddaudit new`` writes: small, working, clean under ``lint``, and proven by ``selftest``.

Placeholders are words in capitals between ``<<`` and ``>>``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddaudit.job import EXAMPLE

__all__ = ["fill", "templates"]

CHECK = '''"""<<TITLE>>: judges what a step measured. Pure: no torch, no clock, no files."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ddaudit.api import Finding, Limit, Limits, Measures, Plant, Remedy, check, fail, ok, skip


class <<CLASS>>Limits(Limits):
    """A runbook overrides these as `limits.<<FAMILY>>.seconds = { fail_above = 2 }`."""

    family = "<<FAMILY>>"

    seconds: Limit = Limit(fail_above=1.0, source="default: CHANGE ME, say why this number")


def printing(seconds: float) -> dict[str, object]:
    """Parameters of a program that prints one number: how the plant makes evidence."""
    return {
        "argv": [sys.executable, "-c", f"print('took {seconds} s')"],
        "capture": {"regex": {"<<FAMILY>>.seconds": r"took (?P<value>\\S+) s"}},
        "units": {"<<FAMILY>>.seconds": "s"},
    }


@check(
    "<<ID>>",
    asks="Does <<FAMILY>> end in time?",
    plant=Plant("it takes too long", "<<FAMILY>>.too-slow", probe="command", params=printing(0.5), planted=printing(9)),
)
def <<FUNCTION>>(measures: Measures, limits: <<CLASS>>Limits) -> Iterator[Finding]:
    """Compares the measure `<<FAMILY>>.seconds` of every place with its limit."""
    found = [m for m in measures.named("<<FAMILY>>.seconds") if isinstance(m.value, int | float)]
    if not found:
        yield skip("the step recorded no measure '<<FAMILY>>.seconds'")
    for measure in found:
        seconds = float(measure.value or 0)
        limit = limits.seconds
        facts = {"measured": seconds, "unit": "s", "limit": limit.bound(seconds), "limit_source": limit.source}
        if limit.judge(seconds).value == "PASS":
            yield ok(f"took {seconds:g} s", where=measure.where, **facts)
        else:
            remedy = Remedy(text="CHANGE ME: what to do first", commands=("ddaudit show <<ID>>",))
            text = f"took {seconds:g} s, longer than {limit.bound(seconds):g} s"
            yield fail("<<FAMILY>>.too-slow", text, where=measure.where, remedy=remedy, **facts)
'''

PROBE = '''"""<<TITLE>>: records facts, never judges them."""

from __future__ import annotations

import shutil
import time

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.api import Measures, ProbeContext, probe


class <<CLASS>>Params(BaseModel):
    """What a runbook's `with` may hold. Unknown keys are refused before anything starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field("/", description="a folder on the file system to ask about")

    @classmethod
    def declared_measures(cls, given: object) -> tuple[str, ...]:
        """Names that a runbook may set limits on; `lint` compares them."""
        return ("<<FAMILY>>.free_share", "<<FAMILY>>.seconds")


@probe("<<ID>>", produces=[Measures], params=<<CLASS>>Params, where="host")
def <<FUNCTION>>(context: ProbeContext, params: <<CLASS>>Params) -> None:
    """Measures the free share of a file system, and how long the question takes (a hanging mount shows here)."""
    began = time.perf_counter()
    usage = shutil.disk_usage(params.path)
    context.measure("<<FAMILY>>.seconds", time.perf_counter() - began, "s", file=params.path)
    context.measure("<<FAMILY>>.free_share", usage.free / usage.total, "1", file=params.path)
'''

RUNBOOK = """# <<TITLE>>

```toml runbook
id     = "<<ID>>"
mode   = "sweep"
owner  = "CHANGE-ME"
budget = "2m"

[params]
most_load = { type = "float", default = 1000, min = 0, help = "load average of the last minute that is still fine" }
```

Say here when to run this page, what a red step means, and whom to call.

## Is this host busy?

A loaded host makes every later timing meaningless. Replace the program by your own: any that prints a number fits.

```toml step load
probe    = "command"
with     = { argv = ["cat", "/proc/loadavg"], timeout = "10s", capture = { regex = { load1 = '^(?P<value>\\S+)' } } }
checks   = ["measures.within-limits"]
timeout  = "30s"
severity = "major"
limits.load1 = { fail_above = "$most_load" }
remedy   = "List the busiest processes with `top -b -n 1 | head -20`, and ask their owners."
```
"""

PACK_RUNBOOK = """# <<TITLE>>

```toml runbook
id     = "<<ID>>"
mode   = "sweep"
owner  = "CHANGE-ME"
budget = "2m"

[params]
path = { default = "/", help = "a folder on the file system to ask about" }
```

Say here when to run this page, what a red step means, and whom to call.

## Does the file system answer in time?

A hanging mount stalls data loaders and checkpoints long before anything reports an error.

```toml step file-system
probe    = "<<ID>>"
with     = { path = "$path" }
checks   = ["<<ID>>.seconds", "measures.within-limits"]
timeout  = "30s"
severity = "major"
limits.<<FAMILY>>.free_share = { warn_below = 0.001 }
remedy   = "Look for the mount with `findmnt $path`, and for stuck processes with `ps -eo pid,stat,wchan:30,args`."
```
"""


def templates(kind: str, name: str) -> dict[str, str]:
    """Relative path -> text of everything that ``new KIND NAME`` writes."""
    file = name.partition(".")[0].replace("-", "_")
    check_id = name if "." in name else f"{name}.seconds"
    if kind == "check":
        return {f"checks/{file}.py": fill(CHECK, _words(check_id))}
    if kind == "job":
        return {f"{name}.toml": EXAMPLE}
    if kind == "probe":
        return {f"probes/{file}.py": fill(PROBE, _words(name))}
    if kind == "runbook":
        return {f"runbooks/{name}.md": fill(RUNBOOK, _words(name))}
    return {
        f"checks/{file}.py": fill(CHECK, _words(check_id)),
        f"probes/{file}.py": fill(PROBE, _words(name)),
        f"runbooks/{name}.md": fill(PACK_RUNBOOK, _words(name)),
    }


def _words(id: str) -> dict[str, str]:
    family = id.partition(".")[0]
    spaced = family.replace("-", " ").replace("_", " ")
    return {
        "ID": id,
        "FAMILY": family,
        "TITLE": spaced.capitalize(),
        "CLASS": spaced.title().replace(" ", ""),
        "FUNCTION": id.replace("-", "_").replace(".", "_"),
    }


def fill(text: str, words: Mapping[str, str]) -> str:
    """Replaces every placeholder."""
    for word, value in words.items():
        text = text.replace(f"<<{word}>>", value)
    return text
