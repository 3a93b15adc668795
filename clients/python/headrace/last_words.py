"""What a program that failed said last: the line that tells most of an error, and the last one that it printed."""

_TRACEBACK = "Traceback (most recent call last):"
_OWN = ("headrace: ", "====")
"""How Headrace's own lines in a trial's log begin."""


def error_line(detail: str) -> str:
    """The exception's own line: its type and message. A message of several lines begins with what went wrong."""
    return next((line.strip() for line in detail.splitlines() if line.strip()), "")


def printed_last(log_tail: str) -> str:
    """The last line that a program printed itself before its traceback; empty where it printed nothing."""
    printed = (line.strip() for line in log_tail.partition(_TRACEBACK)[0].splitlines())
    return next((line for line in reversed(list(printed)) if line and not line.startswith(_OWN)), "")
