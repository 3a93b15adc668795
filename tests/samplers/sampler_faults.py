"""Processes of the pool that fail: each is the main function of a real process."""

import os
import signal
import sys
from multiprocessing.connection import Connection

from headrace_services.scheduler.suggesting import process
from headrace_services.scheduler.suggesting.process import Failed, Question


def throws_at_first(pipe: Connection) -> None:
    """Every first attempt raises."""
    _spoil(pipe, lambda question: question.attempt == 0, _throw)


def dies_at_first(pipe: Connection) -> None:
    """Every first attempt kills its process, as the kernel does when memory runs out."""
    _spoil(pipe, lambda question: question.attempt == 0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hangs_at_three(pipe: Connection) -> None:
    """The first attempt at proposal 3 never ends."""
    _spoil(pipe, lambda question: question.number == 3 and question.attempt == 0, signal.pause)


def always_throws(pipe: Connection) -> None:
    """No attempt succeeds."""
    _spoil(pipe, lambda _: True, _throw)


def leaves_the_space(pipe: Connection) -> None:
    """Proposes a value outside the domain."""
    whole = process.answer

    def answer(models, question: Question):  # type: ignore[no-untyped-def]  # the shape of the whole one
        suggestion = whole(models, question)
        assert not isinstance(suggestion, Failed)
        suggestion.params["x"] = 17.0
        return suggestion

    process.answer = answer
    process.work(pipe)


def exits_at_once(pipe: Connection) -> None:
    """No process ever answers."""
    pipe.close()
    sys.exit(3)


def _throw() -> None:
    raise FloatingPointError("the kernel matrix is singular")


def _spoil(pipe: Connection, when, then) -> None:  # type: ignore[no-untyped-def]  # two small functions
    whole = process.answer

    def answer(models, question: Question):  # type: ignore[no-untyped-def]  # the shape of the whole one
        if when(question):
            try:
                then()
            except FloatingPointError as error:
                return Failed(error=repr(error))
        return whole(models, question)

    process.answer = answer
    process.work(pipe)
