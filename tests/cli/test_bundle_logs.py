"""A member's log, followed while its bundle prints: each line once, in its place, whatever is read when."""

import random
from pathlib import Path

import pytest

from headrace.bundle_logs import LogReader, aboard, copied


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
