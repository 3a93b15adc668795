"""What a message may hold at most: one table for every field of every message that a service receives.

The table (`table`) is the truth: the scheduler, the planner and the worker's socket for trials refuse what is out of
bounds before anything is done with it, and docs/reference/limits.md is written from it. `violations` needs no
service and no model of a study, so that a worker can check a report before it takes it.

Bounds keep everything that is computed and stored from a message within what holds it: 64 bits, a page of 4 MiB, a
step's time. Whether a value makes sense within its bound is for the method to say.
"""

from google.protobuf.message import Message

from headrace.bounds.checker import check_of
from headrace.errors import InvalidFieldError, Violation

__all__ = ["check", "violations"]


def violations(message: Message) -> list[Violation]:
    """What of a message is out of bounds: the field's path, the value (cut), the bound and the remedy."""
    faults = check_of(message.DESCRIPTOR)(message) or ()
    return [
        Violation(field=one.path, value=one.value, message=one.message, remedy=one.remedy) for one in faults
    ]


def check(message: Message) -> None:
    """Raise InvalidFieldError where anything is out of bounds."""
    found = violations(message)
    if found:
        raise InvalidFieldError(found)
