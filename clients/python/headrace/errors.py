"""Every error that Headrace reports, from where it is raised to the user who reads it.

One catalogue (`CATALOGUE`) holds the truth: reason, gRPC status, exception class, whether trying again can
help, and the default remedy. The server raises these classes anywhere and translates once, in its
interceptor, with `to_status`; the client turns a `grpc.RpcError` back into the same class with
`from_rpc_error`. A user of the SDK never sees `grpc.RpcError`.

The status travels in the trailing metadata of the call, which gRPC limits to 8 KiB, so `to_status` drops the
last violations of a very long list and says how many it dropped.
"""

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from headrace.v1 import error_pb2

DOMAIN: Final = "headrace"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_MESSAGE_BYTES: Final = 800
_STATUS_BYTES: Final = 4200


class HeadraceError(Exception):
    """The base of all errors that Headrace reports: what happened, and what to do about it."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        entry = _entry_of(self)
        self.message = message
        self.remedy = remedy if remedy is not None else (entry.remedy if entry else "")

    def __str__(self) -> str:
        ends = not self.message or self.message.endswith((".", "!", "?", "\n"))
        return f"{self.message}{'' if ends else '.'} {self.remedy}".strip()

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later without any change."""
        entry = _entry_of(self)
        return entry is not None and entry.retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One field at fault: its path (`space.lr.low`), the value found, what is wrong and what to do."""

    field: str
    message: str
    remedy: str = ""
    value: str = ""

    def __str__(self) -> str:
        quoted = self.value[:1] in ("'", '"') and self.value in self.message
        got = f" (got {self.value})" if self.value and not quoted else ""
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}{got}. {self.remedy}".rstrip()


class InvalidFieldError(HeadraceError):
    """One or more fields of a request or of a study file are at fault; `violations` holds all of them."""

    def __init__(self, violations: Iterable[Violation], *, remedy: str | None = None) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        super().__init__(_summary(self.violations), remedy=remedy)
        self.args = (self.violations,)

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations))


class StudyExistsError(HeadraceError):
    """A study of this name exists already."""


class StudyNotFoundError(HeadraceError):
    """There is no study of this name."""


class TrialNotFoundError(HeadraceError):
    """The study has no trial of this number."""


class StudyEndedError(HeadraceError):
    """The study has ended, so it takes no more changes."""


class StudyNotEndedError(HeadraceError):
    """The study is still at work, and what was asked needs one that has ended."""


class TrialEndedError(HeadraceError):
    """The trial has been terminated."""


class BadPageTokenError(HeadraceError):
    """The page token is not one that this list gave out."""


class RequestIdReusedError(HeadraceError):
    """The request id was used before, for a request with other content."""


class LeaseStaleError(HeadraceError):
    """The lease is not the caller's any more; nothing was changed."""


LEASE_GONE = "it was paused, ended or reassigned"
"""Why a trial can be somebody's no longer."""


def lease_gone(trial: str) -> str:
    """What somebody is told who speaks for a trial (a resource name) that is not theirs any more."""
    return f"You no longer hold trial {trial.rpartition('/')[2]} ({LEASE_GONE})"


class DatabaseUnavailableError(HeadraceError):
    """The scheduler cannot reach its database."""


class DrainingError(HeadraceError):
    """This scheduler is shutting down."""


class NotAskTellError(HeadraceError):
    """The study's trials are run by workers, so no user's loop may ask for them."""


class StudyDefectError(HeadraceError):
    """The scheduler cannot read the study's rows, or go on with them; other studies do not notice."""


class TooLargeError(HeadraceError):
    """What was asked would take more time or memory than one caller may have."""


class InternalError(HeadraceError):
    """The server failed in a way that it does not know; its log says more."""


class UnreachableError(HeadraceError):
    """No server answers at the address."""


class DeadlineError(HeadraceError):
    """The server did not answer in time; the change may or may not have been made."""


class CallCancelledError(HeadraceError):
    """The call was cancelled before its answer came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One reason with all that follows from it. A reason of None belongs to the client alone."""

    reason: error_pb2.ErrorReason.ValueType | None
    status: grpc.StatusCode
    error: type[HeadraceError]
    remedy: str
    retryable: bool = False


def _entry(
    reason: error_pb2.ErrorReason.ValueType | None,
    status: grpc.StatusCode,
    error: type[HeadraceError],
    remedy: str,
    *,
    retryable: bool = False,
) -> CatalogueEntry:
    return CatalogueEntry(reason=reason, status=status, error=error, remedy=remedy, retryable=retryable)


_CODE = grpc.StatusCode
CATALOGUE: Final[tuple[CatalogueEntry, ...]] = (
    _entry(
        error_pb2.ERROR_REASON_INVALID_FIELD,
        _CODE.INVALID_ARGUMENT,
        InvalidFieldError,
        "Correct the fields that are named.",
    ),
    _entry(
        error_pb2.ERROR_REASON_STUDY_EXISTS,
        _CODE.ALREADY_EXISTS,
        StudyExistsError,
        "Choose another name; `warm_start: {study: OLD}` begins from an old study's results. "
        "Or delete the old study with `headrace delete`.",
    ),
    _entry(
        error_pb2.ERROR_REASON_STUDY_NOT_FOUND,
        _CODE.NOT_FOUND,
        StudyNotFoundError,
        "`headrace studies` lists the studies that exist.",
    ),
    _entry(
        error_pb2.ERROR_REASON_TRIAL_NOT_FOUND,
        _CODE.NOT_FOUND,
        TrialNotFoundError,
        "`headrace trials STUDY` lists the trials that exist.",
    ),
    _entry(
        error_pb2.ERROR_REASON_STUDY_ENDED,
        _CODE.FAILED_PRECONDITION,
        StudyEndedError,
        "Create a new study to go on. Its `warm_start: {study: OLD}` begins from these results, and its `enqueue` "
        "lists configurations to try first.",
    ),
    _entry(
        error_pb2.ERROR_REASON_STUDY_NOT_ENDED,
        _CODE.FAILED_PRECONDITION,
        StudyNotEndedError,
        "Wait for its end, or stop it with `headrace stop`.",
    ),
    _entry(
        error_pb2.ERROR_REASON_TRIAL_ENDED,
        _CODE.FAILED_PRECONDITION,
        TrialEndedError,
        "`headrace why STUDY TRIAL` says how it ended.",
    ),
    _entry(
        error_pb2.ERROR_REASON_BAD_PAGE_TOKEN,
        _CODE.INVALID_ARGUMENT,
        BadPageTokenError,
        "Pass the token of the last answer of the same list unchanged, or none to begin again.",
    ),
    _entry(
        error_pb2.ERROR_REASON_REQUEST_ID_REUSED,
        _CODE.ALREADY_EXISTS,
        RequestIdReusedError,
        "Use a new request id for every new request.",
    ),
    _entry(
        error_pb2.ERROR_REASON_LEASE_STALE,
        _CODE.FAILED_PRECONDITION,
        LeaseStaleError,
        "Leave this trial and ask for another one.",
    ),
    _entry(
        error_pb2.ERROR_REASON_DATABASE_UNAVAILABLE,
        _CODE.UNAVAILABLE,
        DatabaseUnavailableError,
        "Check that Postgres runs and that the scheduler's database URL is right; then try again.",
        retryable=True,
    ),
    _entry(
        error_pb2.ERROR_REASON_DRAINING,
        _CODE.UNAVAILABLE,
        DrainingError,
        "Try again: another scheduler will answer.",
        retryable=True,
    ),
    _entry(
        error_pb2.ERROR_REASON_NOT_ASK_TELL,
        _CODE.FAILED_PRECONDITION,
        NotAskTellError,
        "Create the study without a trial template to run its trials in your own loop.",
    ),
    _entry(
        error_pb2.ERROR_REASON_STUDY_DEFECT,
        _CODE.DATA_LOSS,
        StudyDefectError,
        "Stop it with `headrace stop` and delete it with `headrace delete`; the scheduler's log says more.",
    ),
    _entry(
        error_pb2.ERROR_REASON_TOO_LARGE,
        _CODE.RESOURCE_EXHAUSTED,
        TooLargeError,
        "Ask for less.",
    ),
    _entry(
        error_pb2.ERROR_REASON_INTERNAL,
        _CODE.INTERNAL,
        InternalError,
        "The scheduler's log has the details; please report them.",
    ),
    _entry(
        None,
        _CODE.UNAVAILABLE,
        UnreachableError,
        "Start one with `headrace up`, or give its address with --address or HEADRACE_ADDRESS.",
        retryable=True,
    ),
    _entry(
        None,
        _CODE.DEADLINE_EXCEEDED,
        DeadlineError,
        "Try again: a request that arrives twice is carried out once.",
        retryable=True,
    ),
    _entry(None, _CODE.CANCELLED, CallCancelledError, "Call again if the answer is still wanted."),
)
BY_CLASS: Final[dict[type[HeadraceError], CatalogueEntry]] = {entry.error: entry for entry in CATALOGUE}
BY_REASON: Final[dict[str, CatalogueEntry]] = {
    error_pb2.ErrorReason.Name(entry.reason).removeprefix("ERROR_REASON_"): entry
    for entry in CATALOGUE
    if entry.reason is not None
}
_CLIENT_ONLY: Final = {entry.status: entry for entry in CATALOGUE if entry.reason is None}


def to_status(err: HeadraceError) -> Status:
    """The error as a `google.rpc.Status` (for `grpc_status.rpc_status.to_status`), within gRPC's size limit."""
    entry = _entry_of(err) or BY_CLASS[InternalError]
    reason = entry.reason if entry.reason is not None else error_pb2.ERROR_REASON_INTERNAL
    info = error_details_pb2.ErrorInfo(
        domain=DOMAIN,
        reason=error_pb2.ErrorReason.Name(reason).removeprefix("ERROR_REASON_"),
        metadata={"remedy": _cut(err.remedy, _MESSAGE_BYTES)},
    )
    number: int = entry.status.value[0]
    status = Status(code=number, message=_cut(err.message, _MESSAGE_BYTES))
    status.details.add().Pack(info)
    if isinstance(err, InvalidFieldError):
        room = _STATUS_BYTES - status.ByteSize()
        status.details.add().Pack(_bad_request(err.violations, room))
    return status


def from_rpc_error(err: grpc.RpcError) -> HeadraceError:
    """The same exception as the server raised; without its details, one that the status code implies."""
    code, text = _code_and_text(err)
    status = _status_in(err)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN and info.reason in BY_REASON and status is not None:
            return _rebuild(BY_REASON[info.reason], status, info.metadata.get("remedy"))
    entry = _CLIENT_ONLY.get(code)
    if entry is not None and entry.error is UnreachableError:
        return UnreachableError(f"No Headrace server answers ({_one_line(text)}).")
    if entry is not None:
        return entry.error(f"{_one_line(text)}.")
    return InternalError(f"The server answered {code.name}: {_one_line(text)}.")


def _entry_of(err: HeadraceError) -> CatalogueEntry | None:
    return next((BY_CLASS[cls] for cls in type(err).__mro__ if cls in BY_CLASS), None)


def _rebuild(entry: CatalogueEntry, status: Status, remedy: str | None) -> HeadraceError:
    if entry.error is not InvalidFieldError:
        return entry.error(status.message, remedy=remedy)
    request = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(request):
            break
    return InvalidFieldError(map(_violation, request.field_violations), remedy=remedy)


def _bad_request(violations: Sequence[Violation], room: int) -> error_details_pb2.BadRequest:
    """As many violations as fit, each as message, value and remedy on a line of its own."""
    request = error_details_pb2.BadRequest()
    for done, violation in enumerate(violations):
        lines = (violation.message, violation.value, violation.remedy)
        description = "\n".join(_cut(_one_line(line), 400) for line in lines)
        request.field_violations.add(field=_cut(violation.field, 200), description=description)
        if request.ByteSize() > room:
            del request.field_violations[-1]
            left = len(violations) - done
            request.field_violations.add(
                field=_cut(violation.field, 200),
                description=f"{left} more fields are at fault\n\nCorrect the others first.",
            )
            break
    return request


def _violation(field: error_details_pb2.BadRequest.FieldViolation) -> Violation:
    message, _, rest = field.description.partition("\n")
    value, _, remedy = rest.partition("\n")
    return Violation(field=field.field, message=message, value=value, remedy=remedy)


def _summary(violations: Sequence[Violation]) -> str:
    match violations:
        case [only]:
            return f"{only.field}: {only.message}." if only.field else f"{only.message}."
        case _:
            names = ", ".join(violation.field for violation in violations[:8])
            more = ", …" if len(violations) > 8 else ""
            return f"{len(violations)} fields are invalid: {names}{more}."


def _code_and_text(err: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """Code and details; every error that a call raises is a `grpc.Call` too, though its type does not say so."""
    code = getattr(err, "code", None)
    details = getattr(err, "details", None)
    found = code() if callable(code) else None
    text = details() if callable(details) else None
    return found if isinstance(found, grpc.StatusCode) else grpc.StatusCode.UNKNOWN, text or "no details"


def _status_in(err: grpc.RpcError) -> Status | None:
    trailing: Any = getattr(err, "trailing_metadata", None)
    for key, value in (trailing() if callable(trailing) else None) or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return Status.FromString(value)
            except DecodeError:
                return None
    return None


def show_value(value: object) -> str:
    """A value as a violation shows it: its `repr`, shortened."""
    return _SHORT.repr(value)


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, limit_bytes: int) -> str:
    """The text within the limit. gRPC writes a byte outside ASCII as three characters, so it counts as three."""
    if len(text) <= limit_bytes // 12:
        return text
    size = 0
    for index, character in enumerate(text):
        size += 1 if character.isascii() else 3 * len(character.encode(errors="replace"))
        if size > limit_bytes - 4:
            return text[:index] + "..."
    return text
