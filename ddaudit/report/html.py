"""The HTML page, from ``templates/report.html.j2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ddaudit.jsonio import dumps
from ddaudit.record import Record
from ddaudit.report.gallery import areas
from ddaudit.report.options import Options
from ddaudit.report.safe import LINE_LIMIT, json_text
from ddaudit.report.templating import render_template
from ddaudit.report.view import build_view

__all__ = ["render_html"]

#: A larger record is embedded without evidence and tables of its steps and with long strings cut: pages stay light.
MAX_EMBEDDED = 160_000


def render_html(record: Record, options: Options) -> str:
    """One file: no script runs, nothing is fetched.

    The template is given ``view``, ``areas`` (pictures by area), ``record_json`` (the record, safe inside a script
    element) and ``record_whole``.
    """
    text, whole = _embedded(record)
    # json_text already took from `<`, `>` and `&` what HTML gives them; escaping again would break the JSON.
    names = {"record_json": Markup(text), "record_whole": whole}  # noqa: S704
    drawn = areas(record) if options.pictures else ()
    view = build_view(record, options.run_dir)
    return render_template("report.html.j2", view, options.template_folders, html=True, areas=drawn, **names)


def _embedded(record: Record) -> tuple[str, bool]:
    """The record as JSON that is safe in a script element, and whether it is the whole record."""
    text = json_text(dumps(record.model_dump(by_alias=True), compact=True), html=True)
    if len(text) <= MAX_EMBEDDED:
        return text, True
    less = _less(record)
    return json_text(dumps(_shortened(less), compact=True), html=True), False


def _less(record: Record) -> dict[str, Any]:
    """The record without what its folder holds beside it, and without what its models assume when it is not said.

    ``plan.json`` has the runbook's prose and remedies, ``record.json`` the evidence and tables of each step.
    """
    steps = tuple(step.model_copy(update={"evidence": {}, "exhibits": {}}) for step in record.steps)
    light: dict[str, Any] = {"steps": steps}
    if record.plan:
        planned = tuple(step.model_copy(update={"prose": "", "remedy": None}) for step in record.plan.steps)
        light["plan"] = record.plan.model_copy(update={"steps": planned})
    kept = record.model_copy(update=light).model_dump(by_alias=True, exclude_defaults=True)
    return {"schema": record.schema_, **kept}


def _shortened(value: Any) -> Any:
    """``value`` with every string cut to the length that a page shows."""
    if isinstance(value, str):
        rest = len(value) - LINE_LIMIT
        return f"{value[:LINE_LIMIT]} … ({rest:,} more characters)" if rest > 0 else value
    if isinstance(value, Mapping):
        return {key[:LINE_LIMIT]: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list | tuple) else value
