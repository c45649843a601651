"""``ddaudit show``: one check, probe, runbook or finding id, explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.catalogue import bounds, check_row, probe_row, rows, runbook_row
from ddaudit.cli.common import emit_json, envelope, json_option, load_packs, pack_options
from ddaudit.cli.terminal import printable
from ddaudit.errors import UsageProblem
from ddaudit.findings import QUESTIONS

if TYPE_CHECKING:
    from ddaudit.packs import Packs
    from ddaudit.registry import CheckSpec
    from ddaudit.runbook import Runbook, Step

__all__ = ["command"]


@click.command("show")
@click.argument("id")
@pack_options
@json_option
def command(id: str, as_json: bool, **packs: Any) -> int:
    """Explain one check, probe, runbook or finding id.

    ID is any id that `ddaudit list` or a report prints, also one of the seven questions or a plant.
    """
    loaded = load_packs(packs["pack"], packs["packs"])
    matches = _matches(id, loaded)
    if not matches:
        raise UsageProblem(f"nothing is called {id!r}", fix=_nearest(id, loaded))
    if as_json:
        emit_json(envelope("show", "PASS", 0, matches=matches))
        return 0
    blocks = ["\n".join(_lines(match, loaded)) for match in matches]
    click.echo(printable("\n\n".join(blocks), keep="\n"))
    return 0


def _matches(id: str, packs: Packs) -> list[dict[str, Any]]:
    """Everything of that id; a finding id gives the checks that report it."""
    registry = packs.registry
    found: list[dict[str, Any]] = []
    if id in registry.checks:
        found.append({"kind": "check", **check_row(registry.checks[id], packs)})
    if id in registry.probes:
        found.append({"kind": "probe", **probe_row(registry.probes[id], packs)})
    if id in packs.runbooks:
        found.append({"kind": "runbook", **runbook_row(id, packs)})
    if id in QUESTIONS:
        mine = [check_row(spec, packs) for spec in registry.checks.values() if spec.question == id]
        found.append({"kind": "question", "id": id, "question": QUESTIONS[id], "checks": mine})
    if not found:
        found = [check_row(spec, packs) | {"kind": "check", "plant": id} for spec in registry.checks.values()
                 if any(id == plant.name for plant in spec.plants)]  # fmt: skip
    if not found:
        found = [{"kind": "check", "finding": id, **check_row(spec, packs)} for spec in _reporting(id, packs)]
    return found


def _reporting(id: str, packs: Packs) -> list[CheckSpec]:
    """Checks whose plants expect a finding id; failing that, those of the files that spell it out."""
    specs = list(packs.registry.checks.values())
    planted = [spec for spec in specs if any(id in plant.expected for plant in spec.plants)]
    return planted or [spec for spec in specs if f'"{id}"' in Path(spec.source.file).read_text(encoding="utf-8")]


def _nearest(id: str, packs: Packs) -> str:
    from ddaudit.registry import suggest

    known = [item["id"] for kind in ("checks", "probes", "runbooks") for item in rows(kind, packs)]
    known += [*QUESTIONS, *(row["plant"] for row in rows("plants", packs))]
    known += [finding for item in rows("checks", packs) for finding in item["findings"]]
    hint = suggest(id, known)
    return hint if hint.startswith("did you mean") else "see `ddaudit list checks`"


def _lines(match: dict[str, Any], packs: Packs) -> Iterator[str]:
    if match["kind"] == "check":
        yield from _check_lines(match, packs)
    elif match["kind"] == "question":
        yield f"{match['id']} (question)"
        yield from (match["question"], "", "asked by:")
        yield from (f"  {row['id']:<36} {row['asks']}" for row in match["checks"])
    elif match["kind"] == "probe":
        yield from _probe_lines(match)
    elif match["problem"] is not None:
        yield f"{match['id']} (runbook) cannot be read: {match['problem']}"
    else:
        from ddaudit.runbook import load_runbook

        yield from _runbook_lines(load_runbook(packs.runbooks[match["id"]]), packs)


def _check_lines(match: dict[str, Any], packs: Packs) -> Iterator[str]:
    if "finding" in match:
        yield f"{match['finding']} is reported by:"
    yield f"{match['id']} (check{', question ' + match['question'] if match['question'] else ''})"
    yield match["asks"]
    yield from ("", match["doc"], "") if match["doc"] else ("",)
    yield f"reads:    {', '.join(match['evidence'])}"
    spec = packs.registry.checks[match["id"]]
    for name, limit in spec.metrics().items():
        yield f"limit:    {name}: {bounds(limit)} ({limit.source})"
    if spec.limits and spec.limits[1].free:
        yield "limit:    limits.<measure> for any measure of the step's probe"
    for plant in spec.plants:
        yield f"proof:    {plant.name} -> {' or '.join(plant.expected)}"
    yield f"declared: {match['source']} (pack {match['pack']})"


def _probe_lines(match: dict[str, Any]) -> Iterator[str]:
    yield f"{match['id']} (probe, on {match['where']})"
    yield from (match["doc"], "")
    yield f"records:  {', '.join(match['produces'])}"
    for param in match["params"]:
        default = "required" if param["required"] else "optional"
        default = default if param["default"] is None else f"default {_toml(param['default'])}"
        yield f"with:     {param['name']}: {param['type']}, {default}" + (f"; {param['help']}" if param["help"] else "")
    yield f"declared: {match['source']} (pack {match['pack']})"


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"') if isinstance(value, str) else str(value)


def _runbook_lines(page: Runbook, packs: Packs) -> Iterator[str]:
    budget = f", at most {page.budget:g} s" if page.budget else ""
    yield f"{page.id} (runbook, {page.mode}{budget}{', owner ' + page.owner if page.owner else ''})"
    yield page.title
    yield from ("", page.prose) if page.prose else ()
    yield ""
    for name, param in page.params.items():
        details = [param.type, f"default {_toml(param.default)}" if param.default is not None else "required"]
        details += [", ".join(param.choices)] if param.choices else []
        yield f"-P {name}: {', '.join(details)}" + (f"; {param.help}" if param.help else "")
    for number, step in enumerate(page.steps, 1):
        yield ""
        yield from _step_lines(number, step, page, packs)


def _step_lines(number: int, step: Step, page: Runbook, packs: Packs) -> Iterator[str]:
    from ddaudit.runbook.limits import flatten

    yield f"{number}. {step.id}: {step.title}"
    ranks = f", {step.nproc} rank(s)" if step.nproc else ""
    what = f"probe {step.probe}{ranks}" if step.probe else f"asks: {step.manual}"
    yield f"   {what}, at most {step.timeout:g} s, {step.severity}"
    for label, value in (("needs", ", ".join(step.needs)), ("when", step.when), ("where", step.where)):
        if value:
            yield f"   {label} {value}"
    if step.checks:
        yield f"   checks {', '.join(step.checks)}"
    for name, limit in flatten(step.limits).items():
        shown = ", ".join(f"{bound.replace('_', ' ')} {value}" for bound, value in dict(limit).items())
        yield f"   limit {name}: {shown}"
    edges = [
        f"{spelled} -> {target}" for spelled, target in step.on.model_dump(by_alias=True).items() if target != "next"
    ]
    if edges or page.mode == "triage":
        yield f"   {', '.join([*edges, 'otherwise -> next'])}"
    for text in (step.prose, step.remedy and f"Remedy: {step.remedy.strip()}"):
        if text:
            yield from (f"   {line}".rstrip() for line in ["", *text.splitlines()])
