"""The last output of a program that failed: the most informative line of an error, and the last line that it
printed.
"""

import re

_TRACEBACK = re.compile(r"^\s*(\+ (Exception Group )?)?Traceback \(most recent call last\):", re.MULTILINE)
_WITHIN_ONE = re.compile(
    r'^[\s|]*File ".*", line \d+'
    r"|^[\s|]*(During handling of|The above exception was) .*exception.*:$"
    r"|^[\s|]*\+[-+]+ \d+ -+$",
    re.MULTILINE,
)
"""Lines that occur only in tracebacks, before the exception's own."""
_ATTEMPTS = re.compile(r" \(attempt \d+ of \d+(; not tried again[^()]*)?\)$")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?")
"""Errors that differ only in these are alike."""
_OWN = ("headrace: ", "====")
"""The prefix of Headrace's own lines in a trial's log."""


def error_line(detail: str) -> str:
    """The exception's own line: its type and message. Of a message with several lines, the first one says what
    went wrong. If that line ends in a colon, the next one belongs to it.
    """
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def cause(detail: str) -> str:
    """The error of a failed trial, without the number of the attempt, so that trials with the same failure share
    it.
    """
    return error_line(without_attempt(detail))


def likeness(error: str) -> str:
    """The text that is equal for errors that differ only in numbers: sizes, indices, addresses."""
    return _NUMBER.sub("", error)


def without_attempt(detail: str) -> str:
    """The error of a trial, without the attempt that failed."""
    return _ATTEMPTS.sub("", detail)


def printed_last(log_tail: str) -> str:
    """The last line that a program itself printed before its traceback; empty if it printed nothing, or if the
    tail starts within a traceback.
    """
    before = _TRACEBACK.split(log_tail, maxsplit=1)[0]
    if _WITHIN_ONE.search(before):
        return ""
    printed = (line.strip() for line in before.splitlines())
    return next((line for line in reversed(list(printed)) if line and not line.startswith(_OWN)), "")
