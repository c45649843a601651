"""Moments as logs write them: ISO, dmesg -T, syslog, glog, US order, time of day, Unix seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ddaudit.evidence.incident import Stamp

__all__ = ["Calendar", "find_stamp", "year_in"]

MONTHS = {
    m: i for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}
#: A line's own time stands near its start; a date further in is part of the message.
LOOK = 110

_ISO = re.compile(
    r"(?<!\d)(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T _](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"
    r"(?:[.,](?P<f>\d{1,9}))?\s?(?P<z>Z|UTC|[+-]\d\d:?\d\d)?"
)
_ASCTIME = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"
    r"(?: [A-Z]{3,4})? (?P<y>\d{4})"
)
_GLOG = re.compile(r"(?<![\w.])[EWIF](?P<mo>\d{1,2}?)(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)\.(?P<f>\d+)")
_SYSLOG = re.compile(r"(?:^|[\s>|\]])(?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)\b")
_US = re.compile(r"(?<!\d)(?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d{4})[ |-]+(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)")
_CLOCK = re.compile(r"^[\[( ]*(?P<h>[0-2]\d):(?P<mi>[0-5]\d):(?P<s>[0-5]\d)(?:[.,](?P<f>\d+))?(?=[\])| -])")
_YEAR = re.compile(
    rb"(?<!\d)(?P<iso>20[2-4]\d)[-/][01]\d[-/][0-3]\d"
    rb"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d (?:[A-Z]{3,4} )?(?P<asc>20[2-4]\d)"
)


def year_in(head: bytes) -> int | None:
    """The first year that a dated line of this text names."""
    found = _YEAR.search(head)
    return int(found["iso"] or found["asc"]) if found else None


class Calendar:
    """Supplies what a stamp leaves out: the year of glog and syslog, the day of a bare time of day.

    Only differences between moments matter to triage, so a bundle that names no year at all gets 2000.
    """

    def __init__(self, year: int | None = None) -> None:
        self.year = year or 2000
        self.day: tuple[int, int, int] | None = None
        self._forms = [_ISO, _ASCTIME, _GLOG, _US, _SYSLOG, _CLOCK]

    def read(self, text: str) -> Stamp | None:
        """The first moment in the first characters of a line."""
        head = text[:LOOK]
        for index, pattern in enumerate(self._forms):
            found = pattern.search(head)
            if found and (stamp := self._stamp(found.groupdict())):
                if index > 1 and pattern is not _CLOCK:
                    # A file keeps to its form: the one that matched is tried sooner. A bare clock time stays last.
                    self._forms.insert(1, self._forms.pop(index))
                return stamp
        return None

    def _stamp(self, g: dict[str, str | None]) -> Stamp | None:
        month = int(g["mo"] or 0) if "mo" in g else MONTHS.get(g.get("mon") or "", 0)
        if "d" in g:
            day = (int(g.get("y") or self.year), month, int(g["d"] or 0))
            self.day = day
        elif self.day is None:
            return None
        else:
            day = self.day
        try:
            moment = datetime(*day, int(g["h"] or 0), int(g["mi"] or 0), int(g["s"] or 0), tzinfo=UTC)
        except ValueError:
            return None
        fraction = float(f"0.{g['f']}") if g.get("f") else 0.0
        zone = g.get("z")
        return Stamp(moment.timestamp() + fraction - _offset_s(zone), zone is not None)


def _offset_s(zone: str | None) -> float:
    if zone is None or zone in ("Z", "UTC"):
        return 0.0
    sign = -1 if zone[0] == "-" else 1
    return sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])).total_seconds()


def find_stamp(text: str, year: int | None = None) -> Stamp | None:
    """One-off form of :meth:`Calendar.read`."""
    return Calendar(year).read(text)
