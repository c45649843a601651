"""Zip archives read from their tail: the central directory, checked against local headers. Nothing is extracted."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ddaudit.inert.nodes import Malformed
from ddaudit.inert.source import Source

_EOCD = struct.Struct("<4s4H2IH")
_EOCD64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_SHORT_TAIL_BYTES = 4096
_LONG_TAIL_BYTES = 65_557  # an end record with the longest comment
MAX_ENTRIES = 2_000_000
MAX_DIRECTORY_BYTES = 512 << 20
_BATCH = 1 << 20


@dataclass(slots=True)
class Member:
    """One stored file: where its bytes are (relative to the archive's own source), and the CRC32 written for them."""

    name: str
    offset: int
    size: int
    crc: int
    method: int
    header_offset: int
    flags: int


@dataclass(slots=True)
class ZipTail:
    """What the tail of an archive says; `problems` are contradictions that do not keep the rest from being read."""

    members: dict[str, Member] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)  # (kind, text)
    start: int = 0  # bytes in front of the archive (a polyglot's or another archive's)
    directory_offset: int = 0

    @property
    def crc_recorded(self) -> bool:
        """False when every CRC is 0, as torch writes them with set_crc32_options(False)."""
        return any(m.crc for m in self.members.values()) or not any(m.size for m in self.members.values())


def looks_like_zip(source: Source) -> bool:
    return source.size >= 4 and source.read(0, 4) in (b"PK\x03\x04", b"PK\x05\x06")


def read_zip(source: Source) -> ZipTail:
    """Reads the central directory and local headers; raises `Malformed` when there is no directory to read."""
    entries, size, offset, end, behind = _find_directory(source)
    tail = ZipTail()
    if behind:
        tail.problems.append(("trailing", f"{behind:,} bytes follow the archive"))
    tail.start = end - size - offset
    if tail.start < 0:
        raise Malformed(f"the zip directory should start at {offset:,} with {size:,} bytes, but ends at {end:,}")
    tail.directory_offset = end - size
    if entries > MAX_ENTRIES or size > MAX_DIRECTORY_BYTES or entries * _CENTRAL.size > size:
        raise Malformed(f"a zip directory of {entries:,} entries in {size:,} bytes is not believed")
    raw = source.read(tail.directory_offset, size)
    _read_entries(raw, entries, tail)
    _check_local(source, tail)
    return tail


def _find_directory(source: Source) -> tuple[int, int, int, int, int]:
    """(entries, size, offset, end) of the central directory, by the end record and its 64-bit twin; and how many bytes
    follow the end record."""
    for length in (_SHORT_TAIL_BYTES, _LONG_TAIL_BYTES):
        tail_start = max(0, source.size - length)
        raw = source.read(tail_start, source.size - tail_start)
        at = raw.rfind(b"PK\x05\x06")
        while at >= 0 and len(raw) - at < _EOCD.size:
            at = raw.rfind(b"PK\x05\x06", 0, at)
        if at >= 0:
            break
    else:
        raise Malformed("no end of the zip directory: the file is cut short or was never finished")
    _, _, _, _, entries, size, offset, comment = _EOCD.unpack_from(raw, at)
    end = tail_start + at
    behind = source.size - (tail_start + at + _EOCD.size + comment)
    if behind < 0:
        raise Malformed("the zip end record is cut")
    if end >= _LOCATOR.size:
        signature, _, where, _ = _LOCATOR.unpack(source.read(end - _LOCATOR.size, _LOCATOR.size))
        if signature == b"PK\x06\x07":
            # A record that a prefix has shifted is found from the locator instead of from its own offset.
            for place in (where, end - _LOCATOR.size - _EOCD64.size):
                if 0 <= place <= source.size - _EOCD64.size:
                    record = _EOCD64.unpack(source.read(place, _EOCD64.size))
                    if record[0] == b"PK\x06\x06":
                        return record[7], record[8], record[9], place, behind
            raise Malformed("the 64-bit zip end record is not where its locator says")
    return entries, size, offset, end, behind


def _read_entries(raw: bytes, entries: int, tail: ZipTail) -> None:
    at = 0
    for _ in range(entries):
        if at + _CENTRAL.size > len(raw) or raw[at : at + 4] != b"PK\x01\x02":
            raise Malformed("the zip directory breaks off", tail.directory_offset + at)
        head = _CENTRAL.unpack_from(raw, at)
        flags, method, crc, packed, size = head[3], head[4], head[7], head[8], head[9]
        name_length, extra_length, comment_length, offset = head[10], head[11], head[12], head[16]
        behind = at + _CENTRAL.size
        name = raw[behind : behind + name_length].decode("utf-8", "replace")
        extra = raw[behind + name_length : behind + name_length + extra_length]
        packed, size, offset = _wide(extra, packed, size, offset)
        at = behind + name_length + extra_length + comment_length
        if name in tail.members:
            tail.problems.append(("duplicate", f"{name} is in the archive twice"))
        if method != 0 or packed != size:
            tail.problems.append(("compressed", f"{name} is compressed (method {method}); torch stores only"))
        if flags & 1:
            tail.problems.append(("encrypted", f"{name} claims to be encrypted"))
        tail.members[name] = Member(name, -1, size, crc, method, offset + tail.start, flags)


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """Zip64 values replace those that are all ones, in the order size, packed size, offset."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{min(length, len(extra) - at - 4) // 8}Q", extra, at + 4))
            size = next(values, size) if size == 0xFFFFFFFF else size
            packed = next(values, packed) if packed == 0xFFFFFFFF else packed
            offset = next(values, offset) if offset == 0xFFFFFFFF else offset
        at += 4 + length
    return packed, size, offset


def _check_local(source: Source, tail: ZipTail) -> None:
    """Finds the data behind each local header, and reports headers that say something else than the directory."""
    last_end = tail.start
    for member in sorted(tail.members.values(), key=lambda m: m.header_offset):
        try:
            raw = source.read(member.header_offset, _LOCAL.size)
            head = _LOCAL.unpack(raw)
            if head[0] != b"PK\x03\x04":
                raise Malformed("no local header", member.header_offset)
            name = source.read(member.header_offset + _LOCAL.size, head[9]).decode("utf-8", "replace")
            member.offset = member.header_offset + _LOCAL.size + head[9] + head[10]
            if member.offset + member.size > tail.directory_offset:
                raise Malformed(f"{member.size:,} bytes reach into the zip directory", member.offset)
        except Malformed as error:
            member.offset = -1
            tail.problems.append(("member", f"{member.name}: {error}"))
            continue
        if name != member.name:
            tail.problems.append(("name", f"{member.name} is called {name} in its local header"))
        if member.header_offset < last_end:
            tail.problems.append(("overlap", f"{member.name} overlaps the member before it"))
        last_end = max(last_end, member.offset + member.size)
