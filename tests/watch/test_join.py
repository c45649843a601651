"""Joining a resumed run with the one that saved its checkpoint."""

from __future__ import annotations

import pytest

from ddaudit.watch.join import _loading_others

SAVES = [{"rank": 0, "digest": "a"}, {"rank": 1, "digest": "b"}]


@pytest.mark.parametrize(
    ("saves", "loads", "found"),
    [
        (SAVES, [(0, "a"), (1, "b")], ()),
        (SAVES, [(0, "a"), (1, "a")], (1,)),
        (SAVES, [(0, "b"), (1, "a")], (0, 1)),
        (SAVES, [(0, "a"), (1, "a"), (1, "b")], ()),
        (SAVES[:1], [(0, "a"), (1, "a")], ()),
        ([{"rank": 0, "digest": "a"}, {"rank": 1, "digest": "a"}], [(0, "a"), (1, "a")], ()),
        (SAVES, [(0, "a"), (1, "elsewhere")], ()),
    ],
    ids=["own", "rank 0's", "swapped", "all files", "rank 0 saves for all", "equal files", "unknown file"],
)
def test_ranks_that_load_only_what_other_ranks_saved_are_named(saves, loads, found):
    assert _loading_others(saves, [{"rank": rank, "digest": digest} for rank, digest in loads]) == found
