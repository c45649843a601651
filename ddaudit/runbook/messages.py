"""Turns what pydantic found into one line that a runbook's author understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ddaudit.registry import suggest

__all__ = ["Mistake", "fields_of", "mistakes"]

#: pydantic's error type -> what it wanted, where its own sentence is not plain enough.
_WANTED = {
    "string_type": "text in quotes",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "mapping_type": "a table, such as { key = value }",
    "dict_type": "a table, such as { key = value }",
    "model_type": "a table, such as { key = value }",
    "model_attributes_type": "a table, such as { key = value }",
}


class Mistake:
    """One mistake: the path of its key, what is wrong, what was expected, how to mend it."""

    def __init__(self, keys: Sequence[str], what: str, expected: str | None = None, fix: str | None = None) -> None:
        self.keys, self.what, self.expected, self.fix = tuple(keys), what, expected, fix


def mistakes(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Mistake]:
    """Every mistake of a failed validation, in the order of the fields. ``prefix`` leads the printed key path."""
    seen: dict[tuple[str, ...], Mistake] = {}
    for details in error.errors(include_url=False):
        mistake = _one(details, model, prefix)
        seen.setdefault(mistake.keys, mistake)  # a union reports each of its branches; the first one speaks
    return list(seen.values())


def fields_of(model: type[BaseModel]) -> list[str]:
    """Keys a table may hold, as they are spelled in TOML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _one(details: ErrorDetails, model: type[BaseModel], prefix: str) -> Mistake:
    keys = _keys(details["loc"])
    dotted = ".".join([prefix, *keys] if prefix else keys)
    kind, context = details["type"], details.get("ctx", {})
    given = details.get("input")
    if kind == "extra_forbidden":
        known = _known(model, keys[:-1])
        return Mistake(keys, f"unknown key {dotted!r}", fix=suggest(keys[-1], known) if known else "remove it")
    if kind == "missing":
        return Mistake(keys, f"{dotted!r} is missing", fix=f"add {keys[-1]} = ...")
    if kind in ("literal_error", "enum"):
        return Mistake(keys, f"{dotted} is {_shown(given)}", expected=str(context["expected"]))
    if kind in ("value_error", "assertion_error"):
        reason = details["msg"].partition(", ")[2] or details["msg"]
        return Mistake(keys, f"{dotted}: {reason}" if dotted else reason)
    expected = _WANTED.get(kind) or details["msg"].removeprefix("Input should be ")
    return Mistake(keys, f"{dotted} is {_shown(given)}", expected=expected)


def _keys(loc: Iterable[int | str]) -> tuple[str, ...]:
    """Location without list indices and without the branch names that pydantic adds for unions and validators."""
    return tuple(str(k) for k in loc if isinstance(k, str) and not k.startswith("function-") and "[" not in k)


def _known(model: type[BaseModel], keys: Sequence[str]) -> list[str]:
    """Fields of the (nested) model at ``keys``; empty when it cannot be told."""
    current: Any = model
    for key in keys:
        by_alias = {field.alias or name: field for name, field in current.model_fields.items()}
        annotation = by_alias[key].annotation if key in by_alias else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        current = annotation
    return fields_of(current)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
