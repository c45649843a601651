"""The pickle machine gives CPython's values for plain data, and never does what a pickle asks for."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import struct
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.inert import Call, Global, InertSet, Malformed, Opaque, PickleLimits, Record, load, read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(), inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=20,
)


@given(PLAIN, st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_plain_data_come_back_as_cpython_reads_them(value: object, protocol: int):
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_containers_of_the_standard_library_become_plain_ones(protocol: int):
    found = load(
        pickle.dumps(
            [collections.OrderedDict(a=1), collections.defaultdict(int, b=2), {3}, argparse.Namespace(c=4)], protocol
        )
    )
    assert found[:2] == [{"a": 1}, {"b": 2}]
    assert isinstance(found[2], InertSet) and found[2].items == [3]
    assert isinstance(found[3], Record) and found[3].fields == {"c": 4}


class Payload:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
def test_a_call_is_recorded_and_not_made(protocol: int, tmp_path: Path):
    canary = tmp_path / "canary"
    result = read_pickle(pickle.dumps(Payload(os.mkdir, str(canary)), protocol))
    assert isinstance(result.value, Call)
    assert result.value.args == (str(canary),)
    assert f"{os.mkdir.__module__}.mkdir" in result.calls
    assert not canary.exists()


HOSTILE = {
    "inst": b"(S'true'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'true'\no.",
    "memoized names": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93\x8c\x04true\x85R.",
    "getattr chain": b"cbuiltins\ngetattr\n(cbuiltins\ngetattr\n(cos\nposix\nVx\ntRVsystem\ntR(Vtrue\ntR.",
    "dotted name": b"\x80\x04\x8c\x05torch\x8c\x08hub.load\x93)R.",
    "newobj_ex": b"\x80\x04cos\nPathLike\n)}\x92.",
    "build": b"cos\nPathLike\n)\x81}S'x'\nK\x01sb.",
    "extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_streams_import_nothing(name: str):
    before = set(sys.modules)
    result = read_pickle(HOSTILE[name])
    assert result.error is None
    assert set(sys.modules) == before
    assert result.globals


def test_names_before_a_break_are_still_reported():
    result = read_pickle(b"cos\nsystem\n(Vtrue\ntR\xff\xff")
    assert result.error is not None
    assert "os.system" in result.globals and "os.system" in result.calls


def test_a_nested_class_pickled_through_getattr_is_a_name():
    result = read_pickle(b"c__builtin__\ngetattr\n(cpkg.mod\nOuter\nVInner\ntR.")
    assert result.value == Global("pkg.mod", "Outer.Inner")


BOMBS = {
    "doubling lists": b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(200)) + b".",
    "doubling tuples as keys": b"}"
    + b")q\x00"
    + b"".join(b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(200))
    + b"K\x01s.",
    "memo index 2^32-1": b"]r\xff\xff\xff\xff.",
    "huge text": b"X\xff\xff\xff\xff.",
    "huge text, 64 bit": b"\x8d" + b"\xff" * 8 + b".",
    "huge bytearray": b"\x96" + b"\x7f" + b"\xff" * 7 + b".",
    "huge long": b"\x8b\xff\xff\xff\x7f.",
    "negative long": b"\x8b\xff\xff\xff\xff.",
    "huge frame": b"\x80\x04\x95" + b"\xff" * 8 + b".",
    "long int text": b"I" + b"9" * 4000 + b"\n.",
    "deep nesting": b"]" * 100_000 + b"a" * 99_999 + b".",
    "endless marks": b"(" * 3_000_000,
    "endless dicts": b"}" * 3_000_000,
    "empty": b"",
    "stop only": b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_quickly(name: str):
    begin = time.process_time()
    read_pickle(BOMBS[name], limits=PickleLimits(max_seconds=4))
    assert time.process_time() - begin < 5


def test_the_container_budget_follows_the_length():
    result = read_pickle(b"}" * 3_000_000)
    assert result.error is not None and "containers" in result.error.reason


def test_a_key_on_something_without_keys_is_refused():
    result = read_pickle(b"]K\x01K\x02s.")
    assert result.error is not None and "key is set" in result.error.reason


def test_load_refuses_bytes_behind_the_pickle():
    with pytest.raises(Malformed, match="follow"):
        load(pickle.dumps(1) + b"x")


def test_colliding_integer_keys_stay_within_the_time_limit():
    keys = b"".join(
        b"\x8a\x09" + struct.pack("<Q", (2**61 - 1) * (i + 1) & (2**64 - 1)) + b"\x00N" for i in range(20_000)
    )
    begin = time.perf_counter()
    result = read_pickle(b"}(" + keys + b"u.")
    assert time.perf_counter() - begin < 5
    assert result.error is not None or all(isinstance(k, (int, Opaque)) for k in result.value)
