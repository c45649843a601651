"""Which pictures a record gives. A module that draws is imported only when a page is drawn."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddaudit.record import Record
from ddaudit.report.pictures import AREAS, Picture

__all__ = ["DRAWERS", "Area", "areas"]

#: ``module:function`` of everything that draws, in the order of pages; each takes a record and yields pictures, none
#: when the record has nothing to show.
DRAWERS: tuple[str, ...] = (
    "ddaudit.report.pictures_incident:incident",
    "ddaudit.report.pictures_training:training",
    "ddaudit.report.pictures_system:system",
    "ddaudit.report.pictures_forecast:forecast",
)


@dataclass(frozen=True)
class Area:
    """One part of a page: its pictures under a heading."""

    id: str
    title: str
    pictures: tuple[Picture, ...]


def areas(record: Record) -> tuple[Area, ...]:
    """The areas of a record that have a picture, in reading order."""
    found = [picture for name in DRAWERS for picture in _drawn(name, record)]
    grouped = (Area(id, title, tuple(p for p in found if p.area == id)) for id, title in AREAS.items())
    return tuple(area for area in grouped if area.pictures)


def _drawn(name: str, record: Record) -> Iterator[Picture]:
    """What one module draws. One that fails costs its pictures and a warning in the log: at 03:00 a page without a
    picture is worth more than none."""
    module, _, function = name.partition(":")
    try:
        draw: Callable[[Record], Iterator[Picture]] = getattr(importlib.import_module(module), function)
        yield from draw(record)
    except Exception as error:
        logging.getLogger(__name__).warning("pictures of %s: %s: %s", name, type(error).__name__, error)
