"""From matplotlib's SVG document to an element of a page: no ids but its own, no styles, colours as CSS variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

__all__ = ["inline"]

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_COMMAND = re.compile(r"([MLCQzZ])([^A-Za-z]*)")
_PATTERN = re.compile(r"fill: url\(#([^)]+)\)")
_ZERO_TURN = re.compile(r"^rotate\(-?0 [^)]*\)$")
_GONE = {f"{SVG}metadata", f"{SVG}style", f"{SVG}clipPath"}
Point = tuple[float, float]
#: Properties that matplotlib writes as CSS and that the page's own style says better.
_UNSTYLED = {"font-family", "font-stretch", "font-style", "stroke-linejoin", "stroke-linecap", "stroke-dashoffset"}


def inline(document: str, *, id: str, title: str, finding: str, colours: Mapping[str, str]) -> str:
    """Rewrites a document that matplotlib made. ``colours`` maps its hex colours to what the page calls them.

    Style attributes become presentation attributes, so a page needs no inline style. Clipping is dropped: a drawing
    keeps within its axes by its limits.
    """
    root = ET.fromstring(document)  # noqa: S314 - matplotlib's own output, not anybody's file
    size = root.get("viewBox", "0 0 1 1")
    kept = {use.get(LINK, "")[1:] for use in root.iter(f"{SVG}use")} | set(_PATTERN.findall(document))
    body = [element for child in root for element in _rewritten(child, kept, colours)]
    named = {"role": "img", "aria-labelledby": f"{id}-title {id}-finding", "class": "picture"}
    out = ET.Element("svg", {"viewBox": size, **named, **_common(body)})
    ET.SubElement(out, "title", {"id": f"{id}-title"}).text = title
    ET.SubElement(out, "desc", {"id": f"{id}-finding"}).text = finding
    out.extend(_merged(body))
    return ET.tostring(out, encoding="unicode")


def _common(body: Sequence[ET.Element]) -> dict[str, str]:
    """Takes the size and colour that most texts have from each of them: the root says them once."""
    texts = [element for element in body if element.tag == "text"]
    found: dict[str, str] = {}
    for key in ("font-size", "fill"):
        if values := Counter(text.attrib[key] for text in texts if key in text.attrib):
            found[key] = values.most_common(1)[0][0]
    for element in (part for top in body for part in top.iter()):
        if element.tag == "text":
            same = [key for key, value in found.items() if element.get(key) == value]
            for key in same:
                del element.attrib[key]
        elif element.tag in ("path", "rect", "use"):
            element.attrib.setdefault("fill", "currentColor")  # what SVG and matplotlib mean by silence
    return found


def _merged(body: Sequence[ET.Element]) -> list[ET.Element]:
    """Neighbours that are drawn alike as one path, texts last: grid lines, bars of one layer, strokes of one colour.

    Shapes that shine through stay apart, since where two of them overlap it shows.
    """
    out: list[ET.Element] = []
    for element in (e for e in body if e.tag != "text"):
        last = out[-1] if out else None
        if last is not None and element.tag == last.tag == "path" and _look(element) == _look(last):
            last.set("d", last.get("d", "") + element.get("d", ""))
        else:
            out.append(element)
    return out + [element for element in body if element.tag == "text"]


def _look(path: ET.Element) -> object:
    """How a path is drawn; equal looks may be merged."""
    plain = not any(key in ("id", "transform") or "opacity" in key for key in path.attrib)
    return {k: v for k, v in path.attrib.items() if k != "d"} if plain else object()


def _rewritten(element: ET.Element, kept: set[str], colours: Mapping[str, str]) -> list[ET.Element]:
    """The element without namespace and clutter; a group that says nothing gives its children."""
    if element.tag in _GONE:
        return []
    children = [found for child in element for found in _rewritten(child, kept, colours)]
    attributes = _attributes(element, kept, colours)
    name = element.tag.removeprefix(SVG)
    if name in ("g", "defs") and not children:
        return []
    if name == "g" and not attributes:
        return children
    if name == "path" and attributes.get("fill") == "none" and attributes.get("stroke", "none") == "none":
        return []
    new = ET.Element(name, attributes)
    new.text = element.text if name == "text" or name == "tspan" else None
    new.extend(children)
    return [new]


def _attributes(element: ET.Element, kept: set[str], colours: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in element.attrib.items():
        if key == "style":
            found |= _presentation(value, colours)
        elif key == LINK:
            found["href"] = value
        elif key == "id":
            found |= {"id": value} if value in kept else {}
        elif key == "transform" and _ZERO_TURN.match(value):
            continue
        elif key == "d":
            found["d"] = _path(value)
        elif key != "clip-path":
            found[key] = _short(value) if key in ("x", "y", "transform", "points") else value
    return found


def _presentation(style: str, colours: Mapping[str, str]) -> dict[str, str]:
    pairs = (part.partition(":") for part in style.split(";") if part.strip())
    found = {key.strip(): value.strip() for key, _, value in pairs}
    font = re.match(r"(?:[a-z0-9]+ )*?([\d.]+)px ", found.pop("font", ""))
    if font:
        found["font-size"] = font[1]
    shown = {k: colours.get(v, v) for k, v in found.items() if k not in _UNSTYLED and not k.startswith("-")}
    return {k: v.removesuffix("px") if k == "font-size" else v for k, v in shown.items()}


def _short(value: str) -> str:
    """Numbers with one decimal and no line breaks: a tenth of a point is less than a pixel."""
    return _NUMBER.sub(lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), " ".join(value.split()))


def _path(value: str) -> str:
    """The same path in few bytes: tenths of a point, steps from point to point, straight ones as ``h`` and ``v``.

    Steps are taken between rounded points, so that errors do not add up.
    """
    at = start = (0.0, 0.0)
    out: list[str] = []
    for command, numbers in _COMMAND.findall(value):
        given = [round(float(n), 1) for n in numbers.split()]
        points = list(zip(given[::2], given[1::2], strict=True))
        if command == "M":
            out.append(_told("M", points[0]))
            start = points[0]
        elif command == "L":
            out.append(_line(at, points[0]))
        elif command in "zZ":
            out.append("z")
        else:
            out.append(_told(command.lower(), *((x - at[0], y - at[1]) for x, y in points)))
        at = points[-1] if points else start
    return "".join(out)


def _line(start: Point, end: Point) -> str:
    dx, dy = end[0] - start[0], end[1] - start[1]
    if start[1] == end[1]:
        return f"h{_tenths(dx)}" if dx else ""
    return f"v{_tenths(dy)}" if start[0] == end[0] else _told("l", (dx, dy))


def _told(command: str, *points: Point) -> str:
    numbers = [_tenths(value) for point in points for value in point]
    return command + "".join(n if i == 0 or n[0] == "-" else f" {n}" for i, n in enumerate(numbers))


def _tenths(value: float) -> str:
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
