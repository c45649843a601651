"""Drawings lose bytes and nothing that a reader sees."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.report.pictures import COLOURS, figure, svg
from ddaudit.report.svg import inline

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">'
coordinates = st.floats(-2000, 2000, allow_nan=False).map(lambda v: round(v, 6))
points = st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=30)


def drawn(body: str) -> str:
    return inline(f"{HEAD}{body}</svg>", id="p", title="t", finding="f", colours={})


def replayed(path: str) -> list[tuple[float, float]]:
    """The points that a renderer visits."""
    x = y = 0.0
    visited = []
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", text)]
        x += {"l": lambda n: n[0], "h": lambda n: n[0]}.get(command, lambda n: 0.0)(numbers)
        y += {"l": lambda n: n[1], "v": lambda n: n[0]}.get(command, lambda n: 0.0)(numbers)
        x, y = numbers if command == "M" else (x, y)
        visited.append((round(x, 1), round(y, 1)))
    return visited


@settings(max_examples=50, deadline=None)
@given(points)
def test_a_shortened_path_visits_every_point_to_a_tenth(given_points: list[tuple[float, float]]) -> None:
    told = " ".join(f"{'L' if i else 'M'} {x:f} {y:f}" for i, (x, y) in enumerate(given_points))
    found = re.search(r' d="([^"]*)"', drawn(f'<path d="{told}" style="stroke: red"/>'))
    wanted = [(round(x, 1), round(y, 1)) for x, y in given_points]
    wanted = wanted[:1] + [after for before, after in pairwise(wanted) if before != after]
    assert found is not None and replayed(found[1]) == [(x + 0.0, y + 0.0) for x, y in wanted]


def test_straight_lines_and_curves_are_steps_from_point_to_point() -> None:
    assert 'd="M1 2h9v-4.5l-3 1zM4 4q1-1 2 0c0 1 1 2 2 2"' in drawn(
        '<path d="M 1 2 L 10 2 L 10 -2.5 L 7 -1.5 z M 4 4 Q 5 3 6 4 C 6 5 7 6 8 6" style="stroke: red"/>'
    )


def test_neighbours_drawn_alike_are_one_path_and_translucent_ones_stay_apart() -> None:
    lines = "".join(f'<path d="M 0 {y} L 9 {y}" style="stroke: red"/><text x="0" y="{y}">{y}</text>' for y in range(3))
    assert drawn(lines).count("<path") == 1 and drawn(lines).count("<text") == 3
    assert drawn(lines.replace("red", "red; opacity: 0.5")).count("<path") == 3


def test_texts_keep_a_size_and_colour_that_is_not_the_commonest() -> None:
    texts = "".join(f'<text x="0" y="0" style="fill: {c}">{c}</text>' for c in ("grey", "grey", "red"))
    page = drawn(texts)
    assert page.count("grey") == 3 and '<text x="0" y="0" fill="red">red</text>' in page
    assert 'fill="currentColor"' in drawn(texts + '<path d="M 0 0 L 1 0"/>'), "a shape never takes the texts' colour"


def test_a_hatched_bar_is_filled_with_a_pattern_that_the_drawing_has() -> None:
    with figure() as (fig, axes):
        axes.bar([0, 1], [1, 2], color=COLOURS["orange"], hatch="//")
        drawing = svg(fig, id="bars", title="t", finding="f")
    wanted = set(re.findall(r'fill="url\(#([^)]+)\)"', drawing))
    assert wanted and wanted == set(re.findall(r'<pattern[^>]* id="([^"]+)"', drawing))
