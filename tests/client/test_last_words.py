"""The last line that a program printed, from logs that end with a traceback of any kind, or with part of one."""

import subprocess
import sys

import pytest

from headrace.last_words import printed_last

PROGRAMS = {
    "plain": "raise ValueError('no data')",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('no data')",
    "caused": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('no data') from error",
    "group": "raise ExceptionGroup('two of them', [ValueError('a'), ExceptionGroup('b', [KeyError('c')])])",
    "group raised in functions": (
        "def inner():\n    raise ValueError('a')\ntry:\n    inner()\nexcept ValueError as error:\n"
        "    raise ExceptionGroup('one', [error])"
    ),
    "syntax": "compile('a b', 'train.py', 'exec')",
    "quiet": "sys.exit(1)",
}


def log_of(program: str) -> str:
    """The log of a program that prints two lines and then fails."""
    source = f"import sys\nprint('epoch 1', flush=True)\nprint('epoch 2', flush=True)\n{program}\n"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_line_before_the_traceback_is_the_last(kind: str) -> None:
    assert printed_last(log_of(PROGRAMS[kind])) == "epoch 2"


@pytest.mark.parametrize("kind", [kind for kind in PROGRAMS if kind != "quiet"])
def test_a_tail_that_begins_within_a_traceback_has_none(kind: str) -> None:
    lines = log_of(PROGRAMS[kind]).splitlines(keepends=True)[2:]
    frames = [place for place, line in enumerate(lines) if "File " in line]
    for first in range(1, frames[-1] + 1):
        tail = "".join(lines[first:])
        assert printed_last(tail) == "", tail


def test_a_program_that_fails_without_a_traceback_printed_its_last_line() -> None:
    assert (
        printed_last("epoch 1\nFile not found: data.csv\n==== ended with 1\n") == "File not found: data.csv"
    )
