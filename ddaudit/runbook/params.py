"""Parameters of a runbook: ``-P name=value`` turned into typed, checked values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.errors import UsageProblem
from ddaudit.registry import suggest
from ddaudit.runbook.model import Param, Runbook

__all__ = ["convert", "defaults", "read_params"]

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def convert(param: Param, value: Any) -> int | float | str | bool:
    """A command line's text, or a typed value from Python or TOML -> the parameter's type, within its bounds.

    Raises:
        ValueError: with the reason, ready to follow ``-P name=value: ``.
    """
    typed = _typed(param.type, value)
    if isinstance(typed, int | float) and not isinstance(typed, bool):
        if param.min is not None and not typed >= param.min:
            raise ValueError(f"{typed} is below the minimum {param.min:g}")
        if param.max is not None and not typed <= param.max:
            raise ValueError(f"{typed} is above the maximum {param.max:g}")
    if param.choices is not None and str(typed) not in param.choices:
        raise ValueError(f"{typed!r} is none of {', '.join(param.choices)}")
    return typed


def _typed(kind: str, value: Any) -> int | float | str | bool:
    text = str(value).strip()
    if kind == "str":
        return value if isinstance(value, str) else text
    if kind == "bool":
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in _TRUE
    if isinstance(value, bool):
        raise ValueError(f"{text!r} is no number")
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {'whole number' if kind == 'int' else 'number'}") from None


def defaults(runbook: Runbook) -> dict[str, Any]:
    """Default of every parameter, in its type; None where the caller must give one."""
    return {
        name: None if param.default is None else convert(param, param.default) for name, param in runbook.params.items()
    }


def read_params(runbook: Runbook, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults overlaid with what the caller gave.

    Raises:
        UsageProblem: an unknown name, a value of the wrong type or outside its bounds, or one that was not given.
    """
    for name in given:
        if name not in runbook.params:
            known = suggest(name, runbook.params) if runbook.params else f"runbook {runbook.id!r} takes no parameters"
            raise UsageProblem(f"-P {name}={given[name]}: runbook {runbook.id!r} has no parameter {name!r}", fix=known)
    values = defaults(runbook)
    for name, value in given.items():
        try:
            values[name] = convert(runbook.params[name], value)
        except ValueError as error:
            help = runbook.params[name].help
            raise UsageProblem(f"-P {name}={value}: {error}", expected=help or runbook.params[name].type) from None
    for name, value in values.items():
        if value is None:
            raise UsageProblem(f"runbook {runbook.id!r} needs parameter {name!r}", fix=f"add -P {name}=VALUE")
    return values
