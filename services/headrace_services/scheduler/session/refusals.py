"""Why a worker's message is refused, in words for the user: what is wrong with it, and whose doing it is. Pure."""

from typing import Final

from headrace.bounds.kinds import Told
from headrace.errors import HeadraceError, InternalError, InvalidFieldError
from headrace.v1 import worker_pb2

REASON: Final = Told(2000)

Durable = worker_pb2.Report | worker_pb2.Restored | worker_pb2.Exited


def outcome(error: Exception) -> str:
    """How the lease of a refused message ends: only a field out of bounds is charged to its trial."""
    return "FAILED" if isinstance(error, InvalidFieldError) else "DEFECT"


def reason(message: Durable, error: Exception) -> str:
    """What ended the lease of a message."""
    match error:
        case InvalidFieldError():
            why = "; ".join(map(str, error.violations))
        case HeadraceError() if not isinstance(error, InternalError):
            why = str(error)
        case _:
            what = error.message if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
            why = f"this is a defect of Headrace and not of the trial: {what}"
    text = f"the scheduler could not take a {type(message).__name__.lower()} of it: {why}"
    return REASON.kept(text)
