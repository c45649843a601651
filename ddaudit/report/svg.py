"""From matplotlib's SVG document to an element of a page: no ids but its own, no styles, colours as CSS variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

__all__ = ["inline"]

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_ZERO_TURN = re.compile(r"^rotate\(-?0 [^)]*\)$")
_GONE = {f"{SVG}metadata", f"{SVG}style", f"{SVG}clipPath"}
#: Properties that matplotlib writes as CSS and that the page's own style says better.
_UNSTYLED = {"font-family", "font-stretch", "font-style", "stroke-linejoin", "stroke-linecap", "stroke-dashoffset"}


def inline(document: str, *, id: str, title: str, finding: str, colours: Mapping[str, str]) -> str:
    """Rewrites a document that matplotlib made. ``colours`` maps its hex colours to what the page calls them.

    Style attributes become presentation attributes, so a page needs no inline style. Clipping is dropped: a drawing
    keeps within its axes by its limits.
    """
    root = ET.fromstring(document)  # noqa: S314 - matplotlib's own output, not anybody's file
    size = root.get("viewBox", "0 0 1 1")
    kept = {use.get(LINK, "")[1:] for use in root.iter(f"{SVG}use")}
    body = [element for child in root for element in _rewritten(child, kept, colours)]
    named = f"{id}-title {id}-finding"
    out = ET.Element("svg", {"viewBox": size, "role": "img", "aria-labelledby": named, "class": "picture"})
    ET.SubElement(out, "title", {"id": f"{id}-title"}).text = title
    ET.SubElement(out, "desc", {"id": f"{id}-finding"}).text = finding
    out.extend(body)
    return ET.tostring(out, encoding="unicode", short_empty_elements=False)


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
        elif key != "clip-path":
            found[key] = _short(value) if key in ("d", "x", "y", "transform", "points") else value
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
