"""Runs a program of the machine's own (dcgmi, ibstat, an nccl-tests binary) and records the numbers it prints."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ddaudit.context import ProbeContext
from ddaudit.evidence.command import CommandRun
from ddaudit.evidence.measures import Measures
from ddaudit.probes._capture import RESERVED, Capture, Pick, read
from ddaudit.probes._program import Ended, run_program
from ddaudit.redact import redact_argv, redact_text
from ddaudit.registry import probe
from ddaudit.runbook.model import Seconds

__all__ = ["CommandParams", "command"]

#: Variables that programs need to be found and to speak plainly; none of them holds a secret by convention.
PASSED = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES")
#: How much of the output the record keeps: enough for the lines that explain a failure.
TAIL_CHARS = 4000
#: Seconds left to the probe itself for writing down what happened before the step's deadline.
RESERVE_S = 2.0


class CommandParams(BaseModel):
    """What to run and what to read off its output.

    ``argv`` is a list: no shell looks at it. ``env`` lists variables (globs allowed) passed on beyond the usual few;
    ``set_env`` sets some. Output beyond ``max_output_bytes`` is read and dropped. ``pick`` says which of several values
    of one measure counts. ``units`` names the unit of a measure.
    """

    # Numbers become words, so that argv may hold a $param or $step.metric that is one.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    argv: tuple[str, ...] = Field(min_length=1, max_length=1000)
    timeout: Seconds = 60.0
    env: tuple[str, ...] = ()
    set_env: Mapping[str, str] = Field(default_factory=dict)
    stream: Literal["stdout", "stderr", "both"] = "stdout"
    max_output_bytes: int = Field(1 << 20, ge=1, le=64 << 20)
    capture: Capture = Field(default_factory=Capture)
    pick: Pick = "last"
    units: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("argv")
    @classmethod
    def _words(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        if not argv[0].strip():
            raise ValueError("starts with an empty word; expected the program's name")
        if any("\0" in word for word in argv):
            raise ValueError("holds a NUL character")
        if len(argv) == 1 and " " in argv[0]:
            raise ValueError(f"is one word, {argv[0]!r}; write a list with one word each, since no shell splits it")
        return argv

    @model_validator(mode="after")
    def _units(self) -> Self:
        for name in self.units:
            if name not in self.capture.names():
                raise ValueError(f"units names {name!r}, which no capture measures")
        return self

    @classmethod
    def declared_measures(cls, given: Mapping[str, Any]) -> Sequence[str]:
        """Names that a step with these (possibly wrong) parameters will measure, for lint."""
        try:
            capture = Capture.model_validate(given.get("capture", {}))
        except ValueError:
            return RESERVED
        return (*RESERVED, *capture.names())


@probe("command", produces=[Measures, CommandRun], params=CommandParams, where="host")
def command(context: ProbeContext, params: CommandParams) -> None:
    """Runs a program and records its exit code, its wall time and what ``capture`` finds in its output.

    The program runs once, on this host, in the step's scratch folder, with an environment of a few named variables. A
    program that is not there leaves every measure without a value, and the reason in the evidence: "not measured".
    """
    timeout_s = max(0.1, min(params.timeout, context.remaining_s() - RESERVE_S))
    ended = run_program(
        params.argv,
        env=_environment(params),
        cwd=context.scratch,
        timeout_s=timeout_s,
        max_bytes=params.max_output_bytes,
        merge=params.stream == "both",
    )
    context.measure("exit_code", ended.exit_code)
    context.measure("seconds", ended.seconds, "s")
    absent = _measure(context, params, ended)
    context.events.emit_evidence(
        CommandRun(
            argv=tuple(redact_argv(params.argv)),
            host=context.host,
            exit_code=ended.exit_code,
            signal=ended.signal,
            seconds=ended.seconds,
            timeout_s=timeout_s,
            timed_out=ended.timed_out,
            not_started=ended.not_started,
            truncated=ended.truncated,
            stdout_tail=_tail(ended.stdout),
            stderr_tail=_tail(ended.stderr),
            absent=absent,
        )
    )


def _environment(params: CommandParams) -> dict[str, str]:
    wanted = (*PASSED, *params.env)
    passed = {k: v for k, v in os.environ.items() if any(fnmatch.fnmatchcase(k, pattern) for pattern in wanted)}
    return {**passed, **params.set_env}


def _measure(context: ProbeContext, params: CommandParams, ended: Ended) -> dict[str, str]:
    """Records every declared measure, without a value where there is none; returns why, by name."""
    text = ended.stderr if params.stream == "stderr" else ended.stdout
    absent: dict[str, str] = {}
    for found in read(params.capture, text, params.pick):
        unit = params.units.get(found.name)
        for value in found.values:
            context.measure(found.name, redact_text(value) if isinstance(value, str) else value, unit)
        if not found.values:
            context.measure(found.name, None, unit)
            absent[found.name] = _reason(ended, found.absent or "")
    if ended.exit_code is None:
        absent["exit_code"] = _reason(ended, "")
    return absent


def _reason(ended: Ended, otherwise: str) -> str:
    if ended.not_started:
        return ended.not_started
    if ended.timed_out:
        return f"the program was ended after {ended.seconds:.1f} s"
    return f"{otherwise} (its output was cut)" if ended.truncated else otherwise


def _tail(text: str) -> str:
    """The last lines. Redacted before it is cut, so that no cut hides the word that tells a secret."""
    redacted = redact_text(text)
    return redacted if len(redacted) <= TAIL_CHARS else "..." + redacted[-TAIL_CHARS:]
