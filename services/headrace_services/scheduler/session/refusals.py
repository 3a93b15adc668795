"""Why a worker's message is refused, in words for the user: what is wrong with it, and who caused it. Pure."""

from typing import Final

from headrace.bounds.kinds import Told
from headrace.errors import HeadraceError, InternalError, InvalidFieldError
from headrace.v1 import worker_pb2

REASON: Final = Told(2000)

Durable = worker_pb2.Report | worker_pb2.Restored | worker_pb2.Exited


def outcome(error: Exception) -> str:
    """How the lease of a refused message ends: only an out-of-bounds field is charged to its trial."""
    return "FAILED" if isinstance(error, InvalidFieldError) else "DEFECT"


def reason(message: Durable, error: Exception) -> str:
    """The reason with which a refused message ended its lease."""
    match error:
        case InvalidFieldError():
            why = "; ".join(map(str, error.violations))
        case HeadraceError() if not isinstance(error, InternalError):
            why = str(error)
        case _:
            what = error.message if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
            why = f"this is a defect of Headrace and not of the trial: {what}"
    text = f"the scheduler could not process a {type(message).__name__.lower()} of it: {why}"
    return REASON.kept(text)
