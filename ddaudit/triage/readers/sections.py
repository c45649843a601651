"""Files that a person or a script put together from several: a headline of the host, rank or file before each part.

Knows ``==> node07/dmesg <==`` (tail), rulers around a host list (dshbak, clush -b) and headlines such as
``===== node07 =====``, ``### host: node07`` or ``--- rank 3 ---``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddaudit.triage.readers.slurm import expand_hosts

__all__ = ["SEPARATOR", "real_name", "sections"]

#: Between a file's name and the part's title in the name of a part.
SEPARATOR = "::"
#: Parts beyond this are no collection of hosts.
MAX_PARTS = 5000
#: Words with a number that are no hosts.
_NO_HOST = (
    r"(?:step|epoch|iter|iteration|frame|layer|batch|attempt|phase|stage|part|shard|run|job|node_rank|v|h|a|b|python"
    r"|cuda|torch|gpu)[ _-]?\d+\b"
)
_WORD = rf"(?!{_NO_HOST})[A-Za-z][A-Za-z0-9-]*\d[\w.-]*|rank[ _:#-]{{0,2}}\d{{1,5}}"
_INTRO = r"(?:(?:host(?:name)?|node|output of|on|from)\b[ :=]*)?"
_HEAD = re.compile(
    r"^==> (?P<path>\S.{0,200}?) <==\r?$"
    r"|^-{8,}\r?\n(?P<list>[A-Za-z][\w.,\[\]-]{1,200})(?: \(\d+\))?\r?\n-{8,}\r?$"
    rf"|^(?P<rule>[=#*~+-]){{2,}}>? *{_INTRO}(?P<one>{_WORD})[ :]*(?:<?[=#*~+-]{{2,}})?\r?$"
    rf"|^[=#*~+-]{{3,}}>? [^\n]{{0,60}}?\b(?P<two>{_WORD})\b[^\n]{{0,40}}? <?[=#*~+-]{{3,}}\r?$",
    re.MULTILINE,
)


def sections(text: str) -> Iterator[tuple[str, int, str]]:
    """(title, lines before it, text) of each part; nothing where the file is in one piece.

    A part under a list of hosts (equal output of several) is given to each of them.
    """
    heads = list(_HEAD.finditer(text))
    if len(heads) < 2 or len(heads) > MAX_PARTS:
        return
    if text[: heads[0].start()].strip():
        yield "", 0, text[: heads[0].start()]
    for number, head in enumerate(heads):
        stop = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        before = text.count("\n", 0, head.end())
        for title in _titles(head):
            yield title, before, text[head.end() : stop]


def _titles(head: re.Match[str]) -> list[str]:
    if head["list"]:
        return expand_hosts(head["list"])[:64]
    title = head["path"] or head["one"] or head["two"]
    return [re.sub(r"[ :#]+", "_", title)]


def real_name(name: str) -> str:
    """The file that holds a part."""
    return name.partition(SEPARATOR)[0]
