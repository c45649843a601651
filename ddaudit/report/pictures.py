"""Pictures for HTML pages: matplotlib draws, and the SVG becomes part of the page, with its text as text.

A drawing module says what its picture shows; this one gives it a figure, colours that follow the page's light, dark
and print themes, and SVG without ids, fonts or styles of its own. matplotlib is imported when the first figure is asked
for. The same numbers give the same bytes.

    with figure() as (fig, axes):
        axes.plot(sizes, gbps, color=COLOURS["blue"])
        drawing = svg(fig, id="bandwidth", title="Bus bandwidth by size", finding=sentence)
    yield Picture("bandwidth", "communication", "Bus bandwidth by size", sentence, drawing, heads, rows)
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddaudit.report.safe import visible
from ddaudit.report.svg import inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AREAS", "COLOURS", "DASHES", "Picture", "figure", "label_ends", "svg"]

#: Areas of a page in reading order: id -> heading. Each picture belongs to one.
AREAS: dict[str, str] = {
    "incident": "Incident",
    "loss": "Loss curve",
    "compute": "Compute",
    "communication": "Communication",
    "input": "Input pipeline",
    "memory": "Memory",
    "scheduler": "Scheduler and launch",
    "checkpoint": "Checkpoints",
    "forecast": "Scaling forecast",
}

#: Name -> the colour that a drawing uses. Each stands for a CSS variable of the page (``currentColor`` for ink), so the
#: values matter only in being different. Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS: dict[str, str] = {
    "ink": "#010101",
    "quiet": "#020202",
    "line": "#030303",
    "page": "#040404",
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "red": "#d55e00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
    "yellow": "#f0e442",
    "grey": "#999999",
}
#: Line styles in the order of use: lines differ by dash before they differ by colour.
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 2)))

WIDTH_IN, HEIGHT_IN = 5.6, 2.5
FONT_PT = 8.5


@dataclass(frozen=True)
class Picture:
    """One picture: ``finding`` is the sentence that it states, ``heads`` and ``rows`` are its numbers as a table.

    ``id`` is unique on the page and made of letters, digits and hyphens. ``drawing`` is SVG that :func:`svg` made.
    """

    id: str
    area: str
    title: str
    finding: str
    drawing: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        assert self.area in AREAS, self.area
        assert self.id.replace("-", "").isalnum() and self.id.isascii(), self.id


@contextmanager
def figure(width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> Iterator[tuple[Figure, Axes]]:
    """One figure with one pair of axes; draw it and call :func:`svg` inside the block. Sizes in inches of a page that
    is scaled to its column: the default is legible on a phone."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # building its font cache is no news
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_style()):
        fig = Figure(figsize=(width_in, height_in), layout="constrained")
        yield fig, fig.subplots()


def _style() -> dict[Any, Any]:
    ink, quiet, line = COLOURS["ink"], COLOURS["quiet"], COLOURS["line"]
    return {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a host may be called $x$
        "text.usetex": False,
        "font.size": FONT_PT,
        "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine lays out alike
        "text.color": ink,
        "axes.edgecolor": line,
        "axes.labelcolor": quiet,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.unicode_minus": False,
        "figure.facecolor": "none",
        "grid.color": line,
        "grid.linewidth": 0.5,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.labelcolor": quiet,
        "ytick.labelcolor": quiet,
        "lines.linewidth": 1.6,
        "legend.frameon": False,
        "legend.fontsize": FONT_PT,
        "legend.handlelength": 1.4,
        "hatch.color": COLOURS["page"],
        "hatch.linewidth": 0.8,
    }


def svg(fig: Figure, *, id: str, title: str, finding: str) -> str:
    """The figure as an ``<svg role="img">`` element whose name is ``title`` and whose description is ``finding``."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = id  # ids of shared shapes: stable, and of no other picture
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata={"Date": None})
    variables = {value: f"var(--c-{name})" for name, value in COLOURS.items()}
    variables |= {COLOURS["ink"]: "currentColor"}
    variables |= {COLOURS[name]: f"var(--{name})" for name in ("quiet", "line", "page")}
    return inline(out.getvalue(), id=id, title=visible(title, 200), finding=visible(finding), colours=variables)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], *, gap: float = 0.085) -> None:
    """Writes (y, text, colour) right of the axes beside the ends of lines, pushed apart so that none covers another.

    Call it after the limits of the y axis are set. ``gap`` is the least distance as a share of the axis.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    placed: list[tuple[float, str, str]] = []
    for y, text, colour in sorted(ends):
        at = float(to_axes.transform((axes.get_xlim()[1], y))[1])
        below = placed[-1][0] + gap if placed else 0.0
        placed.append((max(at, below), text, colour))
    over = placed[-1][0] - 1.0 if placed else 0.0
    for at, text, colour in placed:
        y = at - max(over, 0.0)
        axes.text(1.01, y, visible(text, 40), color=colour, transform=axes.transAxes, va="center", ha="left")
