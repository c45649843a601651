"""Which pictures a record gives. A module that draws is imported only when a page is drawn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddaudit.record import Record
from ddaudit.report.pictures import AREAS, Picture

__all__ = ["DRAWERS", "Area", "areas"]

#: ``module:function`` of everything that draws, in the order of pages; each takes a record and yields pictures, none
#: when the record has nothing to show.
DRAWERS: tuple[str, ...] = ("ddaudit.report.pictures_training:training",)


@dataclass(frozen=True)
class Area:
    """One part of a page: its pictures under a heading."""

    id: str
    title: str
    pictures: tuple[Picture, ...]


def areas(record: Record) -> tuple[Area, ...]:
    """The areas of a record that have a picture, in reading order."""
    found = [picture for name in DRAWERS for picture in _drawer(name)(record)]
    grouped = (Area(id, title, tuple(p for p in found if p.area == id)) for id, title in AREAS.items())
    return tuple(area for area in grouped if area.pictures)


def _drawer(name: str) -> Callable[[Record], Iterator[Picture]]:
    module, _, function = name.partition(":")
    found: Callable[[Record], Iterator[Picture]] = getattr(importlib.import_module(module), function)
    return found
