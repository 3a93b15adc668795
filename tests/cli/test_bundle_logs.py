"""A member's log, followed while its bundle prints: each line once, in order, whatever is read when."""

import random
from pathlib import Path

import pytest

from headrace import log_times
from headrace.bundle_logs import LogReader, aboard, copied
from headrace.log_times import Mark


class Files:
    """The logs of a member and of its bundle, as a worker writes them."""

    def __init__(self, folder: Path) -> None:
        self.own, self.bundle = folder / "7.log", folder / "bundle-g1.log"
        self.reader = LogReader(self.own)
        self.shown = b""
        for path in (self.own, self.bundle):
            path.write_bytes(b"")
        self.add(self.own, "==== attempt 1 ====\n")
        self.add(self.bundle, "printed before\n")

    def add(self, path: Path, text: str) -> None:
        with path.open("ab") as file:
            file.write(text.encode())

    def comes_aboard(self) -> None:
        self.since = self.bundle.stat().st_size
        self.add(self.own, aboard(self.bundle.name, self.since))

    def leaves(self) -> None:
        self.add(self.own, copied(self.bundle.read_bytes()[self.since :].decode()))

    def look(self) -> None:
        self.shown += b"".join(self.reader.new())


@pytest.mark.parametrize("seed", range(20))
def test_each_line_is_shown_once_whenever_one_looks(tmp_path: Path, seed: int) -> None:
    chance, files = random.Random(seed), Files(tmp_path)

    def maybe_look() -> None:
        if chance.random() < 0.5:
            files.look()

    maybe_look()
    files.comes_aboard()
    for number in range(4):
        maybe_look()
        files.add(files.bundle, f"epoch {number} \u2713")
        maybe_look()
        files.add(files.bundle, "\n")
    maybe_look()
    files.leaves()
    files.add(files.bundle, "after it left\n")
    files.add(files.own, "==== attempt 2 ====\nalone\n")
    files.look()
    shown = (files.shown + files.reader.rest()).decode()
    assert [line for line in shown.splitlines() if line != "after it left"] == [
        "==== attempt 1 ====",
        *(f"epoch {number} \u2713" for number in range(4)),
        "==== attempt 2 ====",
        "alone",
    ]


def test_a_mark_that_is_half_written_is_waited_for(tmp_path: Path) -> None:
    files = Files(tmp_path)
    mark = aboard(files.bundle.name, 8)
    files.add(files.own, mark[:20])
    files.look()
    assert files.shown == b"==== attempt 1 ====\n"
    files.add(files.own, mark[20:])
    files.look()
    assert files.shown == b"==== attempt 1 ====\nbefore\n"


def test_a_log_without_a_bundle_is_shown_to_the_byte(tmp_path: Path) -> None:
    files = Files(tmp_path)
    text = "headrace: a note\nheadrace: prints into nothing\n10%\r20%\nhead"
    files.add(files.own, text)
    files.look()
    assert files.shown + files.reader.rest() == f"==== attempt 1 ====\n{text}".encode()


def test_where_the_bundles_log_is_gone_its_end_is_shown(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.comes_aboard()
    files.add(files.bundle, "epoch 0\n")
    files.leaves()
    files.bundle.unlink()
    files.look()
    assert files.shown == b"==== attempt 1 ====\nepoch 0\n"


def marked(path: Path, *marks: tuple[int, int]) -> None:
    log_times.path_of(path).write_bytes(log_times.pack(Mark(*mark) for mark in marks))


def read_since(files: Files, since: int) -> tuple[bytes, bool, int]:
    reader = LogReader(files.own, since=since)
    shown = b"".join(reader.new()) + reader.rest()
    return shown, reader.timed, reader.left_out


def test_a_member_s_log_is_read_since_a_time_while_its_bundle_prints(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.comes_aboard()
    files.add(files.bundle, "early\n")
    early = files.bundle.stat().st_size
    files.add(files.bundle, "late\n")
    own = files.own.stat().st_size
    marked(files.own, (1000, 0), (2000, own))
    marked(files.bundle, (500, 0), (3000, early))
    hidden = len(b"==== attempt 1 ====\n")
    assert read_since(files, 3000) == (b"late\n", True, hidden + len(b"early\n"))
    assert read_since(files, 2000) == (b"early\nlate\n", True, hidden)
    assert read_since(files, 900) == (b"==== attempt 1 ====\nearly\nlate\n", True, 0)
    log_times.path_of(files.bundle).unlink()
    assert read_since(files, 3000) == (b"early\nlate\n", False, hidden)
    files.leaves()
    files.add(files.own, "==== attempt 2 ====\n")
    marked(files.own, (1000, 0), (2000, own), (4000, files.own.stat().st_size))
    files.add(files.own, "alone\n")
    assert read_since(files, 4000)[:2] == (b"alone\n", True)  # the bundle that it has left is not read


def test_what_is_followed_is_what_comes_after_the_time(tmp_path: Path) -> None:
    files = Files(tmp_path)
    marked(files.own, (1000, 0), (2000, files.own.stat().st_size))
    files.reader = LogReader(files.own, since=2000)
    files.look()
    assert files.shown == b""
    files.add(files.own, "new\nheadr")
    files.look()
    assert (files.shown, files.reader.rest()) == (b"new\n", b"headr")
