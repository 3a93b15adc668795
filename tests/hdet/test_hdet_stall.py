"""No silent hang: ranks that wait for each other end within the bound, and each reports the rank, step and cause."""

import os
import time
from pathlib import Path
from threading import Event, Thread, get_ident
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import torch
import torch.distributed as dist
from ranks_stall import RANKS, live

from headrace.ports import any_port
from headrace.trial import ends
from headrace_torch.hdet import watch
from headrace_torch.hdet.stacks import Line
from headrace_torch.hdet.stall import Pulse, Seen, stalled
from headrace_torch.hdet.watch import Watch

HANGS_S = 120.0
"""Only the watch ends these ranks before the process group does, after half an hour."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "texts", "unheard"),
    [
        (
            "ahead",
            [
                "Rank 1 counted more steps than the others: usually step() is called twice",
                "rank 1 waits at sync point 2 after step 10",
                "rank 0 is after step 9 at ranks_stall.py:",
            ],
            None,
        ),
        (
            "frozen",
            ["Rank 2 does not answer: the process is frozen", "rank 2 last reported after step "],
            2,
        ),
        (
            "local-fewer",
            ["Rank 3 counted fewer steps than the others", "rank 0 waits at sync point 2 after step 10"],
            None,
        ),
    ],
)
def test_ranks_that_wait_for_each_other_end_and_say_why(
    tmp_path: Path, kind: str, texts: list[str], unheard: int | None
) -> None:
    said = outcome(tmp_path, kind, unheard)
    for rank, text in said.items():
        if rank == unheard:
            continue
        for expected in texts:
            assert expected in text, f"rank {rank} said:\n{text}"
        assert "no rank has moved for" in text


@pytest.mark.full
@pytest.mark.parametrize("kind", ["slow", "slow-disk"])
def test_a_rank_that_works_longer_than_the_bound_ends_nothing(tmp_path: Path, kind: str) -> None:
    said = outcome(tmp_path, kind, None)
    assert set(said.values()) == {""}


def outcome(folder: Path, kind: str, unheard: int | None) -> dict[int, str]:
    """What each rank wrote to its standard error."""
    port = any_port()
    ranks = [
        forked.context().Process(target=live, args=(rank, port, kind, str(folder)), daemon=True)
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    try:
        for number, rank in enumerate(ranks):
            if number != unheard:
                rank.join(HANGS_S)
                assert rank.exitcode is not None, f"rank {number} hangs"
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return {number: (folder / f"{number}.log").read_text() for number in range(RANKS)}


def seen(*pulses: dict[str, Any]) -> dict[int, Seen]:
    usual = {"beat": 1, "moves": 1, "state": "trains", "step": 7, "sync": 1, "place": "a", "blocked": False}
    return {
        rank: Seen(pulse=Pulse(**{**usual, **pulse}), silent_s=0.0, still_s=9.0)
        for rank, pulse in enumerate(pulses)
    }


WAITS = {"state": "waits"}
BLOCKED = {"blocked": True}
READS = {"place": "data.py:3 in read"}
LEFT = {"state": "ended"}


@pytest.mark.parametrize("pulses", [(WAITS, READS), (BLOCKED, READS), (LEFT, BLOCKED, READS), (LEFT, READS)])
def test_a_rank_that_stands_in_no_collective_may_be_working(pulses: tuple[dict[str, Any], ...]) -> None:
    assert stalled(seen(*pulses), bound_s=9.0) is None


@pytest.mark.parametrize("pulses", [(WAITS, BLOCKED), (BLOCKED, BLOCKED | READS), (LEFT, BLOCKED, WAITS)])
def test_a_verdict_names_the_bound_to_raise(pulses: tuple[dict[str, Any], ...]) -> None:
    text = stalled(seen(*pulses), bound_s=9.0)
    assert text is not None
    assert "Where a rank only takes longer, raise timeout_s." in text


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch whose thread finds no process group, and ends."""
    monkeypatch.setattr(watch, "_default_store", dist.HashStore)
    monkeypatch.setattr(watch, "GRACE_S", 0.0)
    made = Watch([0], rank=0, name="one", timeout_s=0.008)
    made.step(3)
    return made


def test_a_rank_that_is_ended_says_why_last_and_to_its_gang(
    one_rank: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = os.pipe()
    monkeypatch.setenv("HEADRACE_LAST_WORDS_FD", str(theirs))
    monkeypatch.setattr(ends, "_line", None)
    ends.open_line()
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    free = Event()

    def waits_for_others() -> None:
        free.wait()

    stands = Thread(target=waits_for_others)
    stands.start()
    assert stands.ident is not None
    one_rank._main = stands.ident
    while one_rank._pulse().moves != one_rank._pulse().moves:
        time.sleep(0.001)
    one_rank._end("no rank has moved")
    free.set()
    stands.join()
    assert ended == [watch.EXIT_STATUS]
    stack, _, last = capsys.readouterr().err.rstrip().rpartition("\n")
    assert last == "headrace_torch.hdet: rank 0 ends: no rank has moved"
    assert "in waits_for_others" in stack
    said = ends.heard(os.read(ours, 1 << 16), 0)
    os.close(ours)
    assert said is not None
    assert said.error == "StallError: no rank has moved"
    assert not said.is_echo


def test_a_thread_that_has_ended_is_not_asked_for_its_time(
    one_rank: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Thread(target=lambda: setattr(one_rank, "_main", get_ident()))
    gone.start()
    gone.join()
    asked: list[int] = []
    monkeypatch.setattr(
        time, "pthread_getcpuclockid", lambda ident: asked.append(ident) or time.CLOCK_MONOTONIC
    )
    assert one_rank._pulse().moves == one_rank._pulse().moves
    assert not asked


def test_a_rank_whose_device_has_work_left_waits(one_rank: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    done, now = False, 100.0
    monkeypatch.setattr(watch, "monotonic", lambda: now)
    monkeypatch.setattr(watch, "stack_of", lambda _: (Line("train.py", 7, "train"),))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(query=lambda: done))
    one_rank.step(4)
    assert not one_rank._pulse().blocked, "it has not stood for long"
    now += 1.0
    assert one_rank._pulse().blocked
    done = True
    assert not one_rank._pulse().blocked
