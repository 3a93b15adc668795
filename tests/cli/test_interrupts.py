"""Ctrl-C while a study is followed."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from headrace.cli.follow import heeding_interrupts


def test_a_lost_interrupt_is_heeded_at_the_next_update() -> None:
    def careless() -> Iterator[Any]:
        yield "first"
        with suppress(KeyboardInterrupt):  # as a library's callback may do
            signal.raise_signal(signal.SIGINT)
        yield "second"

    before = signal.getsignal(signal.SIGINT)
    updates = heeding_interrupts(careless())
    assert next(updates) == "first"
    with pytest.raises(KeyboardInterrupt):
        next(updates)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_the_wait_at_once() -> None:
    def waiting() -> Iterator[Any]:
        signal.raise_signal(signal.SIGINT)
        yield "never"

    with pytest.raises(KeyboardInterrupt):
        next(heeding_interrupts(waiting()))
