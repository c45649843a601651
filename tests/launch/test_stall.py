"""Storage that hangs: the write that never ends is told, once, and one that ends is left alone."""

from __future__ import annotations

import threading
from pathlib import Path

from ddaudit.launch.stall import Patience


def test_a_write_that_never_ends_is_given_up_with_its_folder_and_the_time():
    told: list[tuple[Path, float]] = []
    gone = threading.Event()

    def give_up(path: Path, waited_s: float) -> None:
        told.append((path, waited_s))
        gone.set()

    with Patience(0.08, give_up).watching(Path("/run")):
        assert gone.wait(60)
    assert told == [(Path("/run"), 0.08)]


def test_many_writes_that_end_are_not_added_up():
    told: list[Path] = []
    patience = Patience(0.8, lambda path, _: told.append(path))
    looked = threading.Event()
    until = threading.Timer(1.0, looked.set)
    until.start()
    while not looked.is_set():
        with patience.watching(Path("/run")):
            pass
    assert told == []


def test_a_wait_within_another_and_one_of_another_thread_are_each_watched_by_themselves():
    told: list[Path] = []
    gone, inside, done = threading.Event(), threading.Event(), threading.Event()

    def give_up(path: Path, waited_s: float) -> None:
        told.append(path)
        gone.set()

    patience = Patience(0.08, give_up)

    def hang() -> None:
        with patience.watching(Path("/hangs")):
            with patience.watching(Path("/inner")):
                inside.set()
            done.wait(60)

    worker = threading.Thread(target=hang)
    worker.start()
    inside.wait(60)
    with patience.watching(Path("/quick")):
        pass  # its end must not end the other's
    assert gone.wait(60) and told == [Path("/hangs")]
    done.set()
    worker.join()
