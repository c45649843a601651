"""The terminal report. The same first ten lines as every other format, then what a reader at 03:00 scrolls to.

Every string goes to rich as a ``Text`` (never as markup), so nothing in a record is interpreted.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddaudit.record import Record
from ddaudit.report.model import Headline, Mark, Matrix, Row, View
from ddaudit.report.options import Options
from ddaudit.report.safe import to_ascii
from ddaudit.report.view import build_view

__all__ = ["render_text"]

COLORS = {"good": "green", "warn": "yellow", "bad": "bold red", "none": "cyan", "waived": "magenta"}
MIN_WIDTH = 40
QUIET, VERBOSE = -1, 1


def render_text(record: Record, options: Options) -> str:
    """The report as lines; at verbosity -1 only the first ten."""
    view = build_view(record, options.run_dir)
    page = _Page(options)
    page.head(view)
    if options.verbosity > QUIET:
        page.problems(view.problems)
        page.path(view)
        page.questions(view)
        page.matrix(view.matrix)
        page.steps(view, full=options.verbosity >= VERBOSE)
        page.missing(view)
        page.passed(view, full=options.verbosity >= VERBOSE)
        page.closing(view)
    return page.text()


class _Page:
    """Collects what is printed. One method per section, in reading order."""

    def __init__(self, options: Options) -> None:
        self.ascii, self.color = options.ascii_only, options.color
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            width=max(options.width, MIN_WIDTH),
            color_system="standard" if self.color else None,
            force_terminal=self.color,
            no_color=not self.color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )

    def text(self) -> str:
        lines = self.file.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def t(self, text: str, style: str = "") -> Text:
        return Text(to_ascii(text) if self.ascii else text, style=style)

    def mark(self, mark: Mark) -> Text:
        if not self.ascii:
            return Text(str(mark), COLORS[mark.kind])
        # "[FAIL] FAIL" says it twice; words that the glyph does not carry (a state, a number) stay beside it.
        glyph, (word, space, rest) = to_ascii(mark.glyph), mark.word.partition(" ")
        same = glyph.strip("[]").lower() in (word.lower(), word.lower()[:3])
        return self.t(f"{glyph}{space}{rest}" if same else f"{glyph} {mark.word}", COLORS[mark.kind])

    def line(self, *parts: Text | str, indent: int = 0) -> None:
        joined = Text.assemble(*(p if isinstance(p, Text) else self.t(p) for p in parts))
        self.console.print(Padding(joined, (0, 0, 0, indent)))

    def command(self, command: str, indent: int) -> None:
        """A copyable line: never wrapped, no prompt sign."""
        self.console.print(self.t(" " * indent + command, "bold"), soft_wrap=True)

    def title(self, text: str) -> None:
        self.console.print()
        self.console.print(self.t(text, "bold underline" if self.color else ""))

    def table(self, *heads: str, fixed: Sequence[str] = ()) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(heads), header_style="bold")
        for head in heads:
            table.add_column(self.t(head), overflow="fold", no_wrap=head in fixed)
        return table

    def head(self, view: View) -> None:
        self.line(self.mark(view.verdict), "  ", self.t(view.first_line))
        for headline in view.headlines:
            self._headline(headline)

    def _headline(self, headline: Headline) -> None:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=8, no_wrap=True)
        grid.add_column(overflow="fold")
        if headline.label == "Report":  # a path stays in one piece
            self.command(f"{headline.label:<9}{headline.text}", 0)
            return
        if headline.text:
            grid.add_row(self.t(headline.label, "bold"), self.t(headline.text))
            self.console.print(grid)
        for number, command in enumerate(headline.commands):
            label = headline.label if not headline.text and number == 0 else ""
            self.command(f"{label:<9}{command}", 0)

    def problems(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self.title(f"Did not pass ({sum(r.count for r in rows)})")
        for row in rows:
            step = f"  step {row.step}" if row.step else ""
            self.line(self.mark(row.mark), f"  {row.id}{step}  {row.severity}")
            self.line(row.text, indent=4)
            if facts := "; ".join(p for p in (row.where, row.compared) if p):
                self.line(facts, indent=4)
            if row.evidence:
                self.line(f"evidence {row.evidence}", indent=4)
            if row.remedy:
                self.line(f"do: {row.remedy}", indent=4)
            for command in row.commands:
                self.command(command, 8)

    def path(self, view: View) -> None:
        """The page of a triage runbook as a tree, the edges that were walked in full."""
        if not view.path:
            return
        self.title("Path taken")
        for node in view.path:
            lead = self.mark(node.mark) if node.mark else self.t("· not reached", COLORS["none"])
            self.line(lead, "  ", self.t(node.id, "bold"), f"  {node.title}")
            for outcome, target, walked in node.edges:
                if walked:
                    self.line(self.t(f"└─ {outcome} → {target}", "bold"), indent=4)
                elif node.mark:
                    self.line(f"   {outcome} → {target}", indent=4)

    def questions(self, view: View) -> None:
        self.title("Seven questions")
        for answer in view.questions:
            self.line(self.mark(answer.mark), "  ", self.t(answer.id, "bold"), f"  {answer.name}")
            if answer.mark.word != "not-asked":
                self.line(answer.answer, indent=4)

    def matrix(self, matrix: Matrix | None) -> None:
        if matrix is None:
            return
        self.title("Ready to scale?")
        heads = ("parallelism", *matrix.columns)
        rows = [(name, *cells) for name, cells in matrix.rows]
        widths = [
            max(len(word) for word in (*heads[i].split(), *(str(row[i]) for row in rows))) for i in range(len(heads))
        ]
        fitting = [i for i in range(len(heads)) if sum(w + 2 for w in widths[: i + 1]) <= self.console.width]
        shown = max(len(fitting), 2)
        table = self.table(*heads[:shown])
        for row in rows:
            table.add_row(*(self.mark(c) if isinstance(c, Mark) else self.t(c) for c in row[:shown]))
        self.console.print(table)
        if left := heads[shown:]:
            self.line(f"wider, or on the page: {', '.join(left)}")
        self.line(matrix.advice)

    def steps(self, view: View, *, full: bool) -> None:
        if not view.steps:
            return
        self.title("Steps")
        table = self.table("step", "state", "checks", "took", "what it did", fixed=("step", "state", "checks", "took"))
        for step in view.steps:
            outcome = self.mark(step.outcome) if step.outcome else self.t("–")
            did = "; ".join(p for p in (step.did, step.reason) if p)
            table.add_row(self.t(step.id), self.mark(step.state), outcome, self.t(step.seconds), self.t(did))
            for row in step.numbers:
                table.add_row("", "", "", "", self.t(f"{row.id}: {row.compared if full else row.versus}"))
        self.console.print(table)

    def missing(self, view: View) -> None:
        self.title("Not measured")
        if not view.missing:
            self.line("everything selected was measured")
        for item in view.missing:
            lead = self.mark(item.mark) if item.mark else self.t("· out of sight", COLORS["none"])
            self.line(lead, "  ", self.t(item.what, "bold"), f"  {item.why}")
        if view.measuring_cost:
            self.title("Cost of measuring")
            self.line(view.measuring_cost)

    def passed(self, view: View, *, full: bool) -> None:
        if not full:
            return
        self.title(f"Passed ({sum(r.count for r in view.passed)})")
        for row in view.passed:
            facts = "; ".join(p for p in (row.text, row.where, row.compared) if p)
            self.line(self.mark(row.mark), f"  {row.check}  {row.step}  {facts}")
        self.title("Environment")
        for fact in (*view.differences, *view.facts):
            self.line(f"{fact.name}: {fact.value}")
        self.title("How to repeat this")
        for fact in view.repeat:
            self.line(f"{fact.name}: {fact.value}")
        if view.repeat_command:
            self.command(view.repeat_command, 0)

    def closing(self, view: View) -> None:
        counts = ", ".join(f"{count} {mark.word}" for mark, count in view.counts) or "no findings"
        self.console.print()
        self.line(self.mark(view.verdict), f"  {counts}; exit code {view.exit_code}")
