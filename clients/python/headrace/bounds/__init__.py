"""The limits on every field of every message that a service receives.

The table (`table`) is authoritative: the scheduler, the planner and the worker's socket for trials reject
values out of bounds before doing anything with them, and docs/reference/limits.md is generated from it.
`violations` needs no service and no model of a study, so a worker can check a report before accepting it.

Bounds ensure that everything computed and stored from a message fits: in 64 bits, in a page of 4 MiB, in the
time of a cycle. Whether a value makes sense within its bound is up to the method.
"""

from google.protobuf.message import Message

from headrace.bounds.checker import check_of
from headrace.errors import InvalidFieldError, Violation

__all__ = ["check", "violations"]


def violations(message: Message) -> list[Violation]:
    """The fields of a message that are out of bounds: path, value (truncated), bound and remedy of each."""
    faults = check_of(message.DESCRIPTOR)(message) or ()
    return [
        Violation(field=one.path, value=one.value, message=one.message, remedy=one.remedy) for one in faults
    ]


def check(message: Message) -> None:
    """Raise InvalidFieldError if anything is out of bounds."""
    found = violations(message)
    if found:
        raise InvalidFieldError(found)
