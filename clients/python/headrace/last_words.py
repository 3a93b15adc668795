"""What a program that failed said last: the line that tells most of an error, and the last one that it printed."""

import re

_TRACEBACK = re.compile(r"^\s*(\+ (Exception Group )?)?Traceback \(most recent call last\):", re.MULTILINE)
_WITHIN_ONE = re.compile(
    r'^[\s|]*File ".*", line \d+'
    r"|^[\s|]*(During handling of|The above exception was) .*exception.*:$"
    r"|^[\s|]*\+[-+]+ \d+ -+$",
    re.MULTILINE,
)
"""Lines that stand in tracebacks alone, before the exception's own."""
_ATTEMPTS = re.compile(r" \(attempt \d+ of \d+(; not tried again[^()]*)?\)$")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?")
"""Errors that differ in such alone are alike."""
_OWN = ("headrace: ", "====")
"""How Headrace's own lines in a trial's log begin."""


def error_line(detail: str) -> str:
    """The exception's own line: its type and message. A message of several lines begins with what went wrong; where
    its first line only announces that, by a colon at its end, the next one belongs to it."""
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def cause(detail: str) -> str:
    """The error of a trial that failed, without which of its attempts that was: what trials that failed alike share."""
    return error_line(without_attempt(detail))


def likeness(error: str) -> str:
    """What errors share that differ in numbers alone: sizes, indices, addresses."""
    return _NUMBER.sub("", error)


def without_attempt(detail: str) -> str:
    """The error of a trial without which of its attempts failed by it."""
    return _ATTEMPTS.sub("", detail)


def printed_last(log_tail: str) -> str:
    """The last line that a program printed itself before its traceback; empty where it printed nothing, and where the
    tail begins within a traceback."""
    before = _TRACEBACK.split(log_tail, maxsplit=1)[0]
    if _WITHIN_ONE.search(before):
        return ""
    printed = (line.strip() for line in before.splitlines())
    return next((line for line in reversed(list(printed)) if line and not line.startswith(_OWN)), "")
