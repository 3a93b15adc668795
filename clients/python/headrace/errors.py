"""Every error that Headrace reports, from where it is raised to the user who reads it.

One catalogue (`CATALOGUE`) defines them all: reason, gRPC status, exception class, whether retrying can help,
and the default remedy. Nothing here knows gRPC or protos: reasons and statuses are names.
`headrace.error_status` translates them.
"""

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final


class HeadraceError(Exception):
    """The base of all errors that Headrace reports: what happened, and what to do about it."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        entry = entry_of(self)
        self.message = message
        self.remedy = remedy if remedy is not None else (entry.remedy if entry else "")

    def __str__(self) -> str:
        ends = not self.message or self.message.endswith((".", "!", "?", "\n"))
        return f"{self.message}{'' if ends else '.'} {self.remedy}".strip()

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later without any change."""
        entry = entry_of(self)
        return entry is not None and entry.retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One invalid field: its path (`space.lr.low`), its value, what is wrong and what to do."""

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
    """One or more fields of a request or of a study file are invalid; `violations` holds all of them."""

    def __init__(self, violations: Iterable[Violation], *, remedy: str | None = None) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        super().__init__(_summary(self.violations), remedy=remedy)
        self.args = (self.violations,)

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations))


class StudyExistsError(HeadraceError):
    """A study of this name already exists."""


class StudyNotFoundError(HeadraceError):
    """There is no study of this name."""


class TrialNotFoundError(HeadraceError):
    """The study has no trial of this number."""


class StudyEndedError(HeadraceError):
    """The study has ended, so it cannot be changed any more."""


class StudyNotEndedError(HeadraceError):
    """The study is still active, and the operation requires one that has ended."""


class TrialEndedError(HeadraceError):
    """The trial has been terminated."""


class BadPageTokenError(HeadraceError):
    """The page token is not from this list."""


class RequestIdReusedError(HeadraceError):
    """The request id was used before for a different request."""


class CodeNotFoundError(HeadraceError):
    """The scheduler does not have this code, or no longer has it."""


class LeaseStaleError(HeadraceError):
    """The caller no longer holds the lease; nothing was changed."""


NEW_STUDY: Final = (
    "create a new study: `warm_start: {study: OLD}` begins from these results, and `enqueue` lists configurations to "
    "try first."
)
"""The remedy if a study that has ended should not continue."""

LEASE_GONE = "its lease is over; `headrace why` shows how it ended"
"""The cause if it is not known."""


def lease_gone(trial: int | str, why: str = LEASE_GONE) -> str:
    """The error for somebody who reports for a trial (its number, or a resource name) that they no longer hold."""
    return f"You no longer hold trial {str(trial).rpartition('/')[2]}: {why}"


class DatabaseUnavailableError(HeadraceError):
    """The scheduler cannot reach its database."""


class DrainingError(HeadraceError):
    """This scheduler is shutting down."""


class WorkerNameTakenError(HeadraceError):
    """Another worker with this name is connected."""


class UnauthenticatedError(HeadraceError):
    """The server requires a token, and the call carries no valid one."""


class PermissionDeniedError(HeadraceError):
    """The role of the caller's token does not allow the operation."""


class TokenNotFoundError(HeadraceError):
    """There is no token with this id, or it belongs to another project."""


class QuotaExceededError(HeadraceError):
    """The caller's project has reached its limit."""


class ProjectNotFoundError(HeadraceError):
    """There is no project of this name."""


class ProjectExistsError(HeadraceError):
    """A project of this name already exists."""


class JoinRefusedError(HeadraceError):
    """The join token does not let this worker in."""


class JoinTokenNotFoundError(HeadraceError):
    """There is no join token with this id."""


class WorkerIdentityError(HeadraceError):
    """The caller's certificate does not identify it as the worker that it claims to be."""


class WorkerRevokedError(HeadraceError):
    """The worker's certificate was revoked."""


class WorkerNotFoundError(HeadraceError):
    """No worker of this name has ever connected, or it has been disconnected for long."""


class WorkerLeavesError(HeadraceError):
    """The worker's daemon is exiting by itself, and cannot be stopped from doing so."""


class VersionMismatchError(HeadraceError):
    """A worker and a scheduler are of incompatible releases."""


class WorkerAwayError(HeadraceError):
    """The worker that could answer is not connected, or does not answer."""


class LogGoneError(HeadraceError):
    """The log is neither on its worker nor in the store."""


class StoreAwayError(HeadraceError):
    """The checkpoint store does not answer."""


class NotAskTellError(HeadraceError):
    """The study's trials run on workers, so a user's loop may not ask for them."""


class SeveralObjectivesError(HeadraceError):
    """The study has no single best trial: it has several objectives, and a Pareto front instead."""

    @classmethod
    def of(cls, study: str, metrics: Iterable[str]) -> "SeveralObjectivesError":
        """The error for a study's name and the metrics of its objectives."""
        return cls(
            f"study '{study}' has several objectives ({', '.join(metrics)}), so no trial is simply the best"
        )


class BusyError(HeadraceError):
    """The server has reached its limit of simultaneous calls, in total or from this caller."""


class StudyDefectError(HeadraceError):
    """The scheduler cannot read the study's rows, or continue with them. Other studies are not affected."""


class TooLargeError(HeadraceError):
    """The request would take more time or memory than one caller may use."""


class InternalError(HeadraceError):
    """The server failed in an unexpected way; its log says more."""


class UnreachableError(HeadraceError):
    """No server answers at the address."""


class DeadlineError(HeadraceError):
    """The server did not answer in time; the change may or may not have been made."""


class CallCancelledError(HeadraceError):
    """The call was cancelled before its answer came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One reason with everything that follows from it. Entries with a reason of None occur only in the client."""

    reason: str | None
    status: str
    error: type[HeadraceError]
    remedy: str
    retryable: bool = False


def _entry(
    reason: str | None,
    status: str,
    error: type[HeadraceError],
    remedy: str,
    *,
    retryable: bool = False,
) -> CatalogueEntry:
    return CatalogueEntry(reason=reason, status=status, error=error, remedy=remedy, retryable=retryable)


CATALOGUE: Final[tuple[CatalogueEntry, ...]] = (
    _entry(
        "INVALID_FIELD",
        "INVALID_ARGUMENT",
        InvalidFieldError,
        "Correct the named fields.",
    ),
    _entry(
        "STUDY_EXISTS",
        "ALREADY_EXISTS",
        StudyExistsError,
        "To continue it, use `headrace attach`, or `client.study(NAME)` in Python. "
        "Else choose another name; `warm_start: {study: OLD}` begins from an old study's results. "
        "Or delete the old study with `headrace delete`.",
    ),
    _entry(
        "STUDY_NOT_FOUND",
        "NOT_FOUND",
        StudyNotFoundError,
        "`headrace studies` lists the studies that exist.",
    ),
    _entry(
        "TRIAL_NOT_FOUND",
        "NOT_FOUND",
        TrialNotFoundError,
        "`headrace trials STUDY` lists the trials that exist.",
    ),
    _entry(
        "STUDY_ENDED",
        "FAILED_PRECONDITION",
        StudyEndedError,
        f"`headrace extend` continues it, and `headrace retry` retries its failed trials. Or {NEW_STUDY}",
    ),
    _entry(
        "STUDY_NOT_ENDED",
        "FAILED_PRECONDITION",
        StudyNotEndedError,
        "Wait for its end, or stop it with `headrace stop`.",
    ),
    _entry(
        "TRIAL_ENDED",
        "FAILED_PRECONDITION",
        TrialEndedError,
        "`headrace why STUDY TRIAL` says how it ended.",
    ),
    _entry(
        "BAD_PAGE_TOKEN",
        "INVALID_ARGUMENT",
        BadPageTokenError,
        "Pass the token of the last answer of the same list unchanged, or none to begin again.",
    ),
    _entry(
        "REQUEST_ID_REUSED",
        "ALREADY_EXISTS",
        RequestIdReusedError,
        "Use a new request id for every new request.",
    ),
    _entry(
        "LEASE_STALE",
        "FAILED_PRECONDITION",
        LeaseStaleError,
        "Leave this trial and ask for another one.",
    ),
    _entry(
        "CODE_NOT_FOUND",
        "NOT_FOUND",
        CodeNotFoundError,
        "Ship the folder again, as it was: `headrace run STUDY.yaml --suffix`. Then `headrace retry` the old study.",
    ),
    _entry(
        "DATABASE_UNAVAILABLE",
        "UNAVAILABLE",
        DatabaseUnavailableError,
        "Check that Postgres runs and that the scheduler's database URL is right; then try again.",
        retryable=True,
    ),
    _entry(
        "DRAINING",
        "UNAVAILABLE",
        DrainingError,
        "Try again: another scheduler will answer.",
        retryable=True,
    ),
    _entry(
        "WORKER_NAME_TAKEN",
        "ALREADY_EXISTS",
        WorkerNameTakenError,
        "Give one of the two another `--name`, or stop the other one.",
    ),
    _entry(
        "UNAUTHENTICATED",
        "UNAUTHENTICATED",
        UnauthenticatedError,
        "Log in with `headrace login`, or give a token in HEADRACE_TOKEN. An admin of your project creates one "
        "with `headrace token create`.",
    ),
    _entry(
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
        PermissionDeniedError,
        "Ask an admin of the project for a token with another role.",
    ),
    _entry(
        "TOKEN_NOT_FOUND",
        "NOT_FOUND",
        TokenNotFoundError,
        "`headrace token list` lists the tokens of your project.",
    ),
    _entry(
        "QUOTA_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        QuotaExceededError,
        "Wait for studies to end or stop some, or ask an admin for more: `headrace project set`.",
    ),
    _entry(
        "PROJECT_NOT_FOUND",
        "NOT_FOUND",
        ProjectNotFoundError,
        "`headrace project list` lists the projects that exist.",
    ),
    _entry(
        "PROJECT_EXISTS",
        "ALREADY_EXISTS",
        ProjectExistsError,
        "`headrace project set` changes its limits.",
    ),
    _entry(
        "JOIN_REFUSED",
        "UNAUTHENTICATED",
        JoinRefusedError,
        "Ask an admin for a new token: `headrace worker-token create`.",
    ),
    _entry(
        "JOIN_TOKEN_NOT_FOUND",
        "NOT_FOUND",
        JoinTokenNotFoundError,
        "`headrace worker-token list` lists those that have not expired.",
    ),
    _entry(
        "WORKER_IDENTITY",
        "PERMISSION_DENIED",
        WorkerIdentityError,
        "Start the worker with the `--name` of its certificate, or join with another name: `headrace worker --join`.",
    ),
    _entry(
        "WORKER_REVOKED",
        "PERMISSION_DENIED",
        WorkerRevokedError,
        "If it may come back, join again with a new token: `headrace worker --join`.",
    ),
    _entry(
        "WORKER_NOT_FOUND",
        "NOT_FOUND",
        WorkerNotFoundError,
        "`headrace workers` lists those that are or were connected.",
    ),
    _entry(
        "WORKER_LEAVES",
        "FAILED_PRECONDITION",
        WorkerLeavesError,
        "Start it again when it has ended.",
    ),
    _entry(
        "VERSION_MISMATCH",
        "FAILED_PRECONDITION",
        VersionMismatchError,
        "Install the release that is named on both sides.",
    ),
    _entry(
        "WORKER_AWAY",
        "UNAVAILABLE",
        WorkerAwayError,
        "`headrace workers` says who is connected. Once the worker is back, ask again.",
    ),
    _entry(
        "LOG_GONE",
        "NOT_FOUND",
        LogGoneError,
        "The end of a failed attempt's log is kept: `headrace why STUDY TRIAL` shows it.",
    ),
    _entry(
        "STORE_AWAY",
        "UNAVAILABLE",
        StoreAwayError,
        "Look at the store that the workers were given with --store; then ask again.",
    ),
    _entry(
        "NOT_ASK_TELL",
        "FAILED_PRECONDITION",
        NotAskTellError,
        "Create the study without a trial template to run its trials in your own loop.",
    ),
    _entry(
        "STUDY_DEFECT",
        "DATA_LOSS",
        StudyDefectError,
        "Stop it with `headrace stop` and delete it with `headrace delete`; the scheduler's log says more.",
    ),
    _entry(
        "TOO_LARGE",
        "RESOURCE_EXHAUSTED",
        TooLargeError,
        "Ask for less, such as fewer trials, fewer slots or a smaller model.",
    ),
    _entry(
        "BUSY",
        "UNAVAILABLE",
        BusyError,
        "Try again in a moment, with fewer calls at once.",
        retryable=True,
    ),
    _entry(
        "INTERNAL",
        "INTERNAL",
        InternalError,
        "The scheduler's log has the details; please report them.",
    ),
    _entry(
        None,
        "UNAVAILABLE",
        UnreachableError,
        "Start one with `headrace up`, or give its address with --address or HEADRACE_ADDRESS.",
        retryable=True,
    ),
    _entry(
        None,
        "DEADLINE_EXCEEDED",
        DeadlineError,
        "Try again: a request that arrives twice is carried out once.",
        retryable=True,
    ),
    _entry(
        None,
        "FAILED_PRECONDITION",
        SeveralObjectivesError,
        "Read the Pareto front: `study.front()`, or `front` of what `status()`, `wait()` and `optimize()` return; "
        "`headrace best STUDY` lists it.",
    ),
    _entry(None, "CANCELLED", CallCancelledError, "Call again if the answer is still wanted."),
)
_BY_CLASS: Final[dict[type[HeadraceError], CatalogueEntry]] = {entry.error: entry for entry in CATALOGUE}


def entry_of(err: HeadraceError) -> CatalogueEntry | None:
    """The catalogue's entry for an error's class, or for the class from which it derives."""
    return next((_BY_CLASS[cls] for cls in type(err).__mro__ if cls in _BY_CLASS), None)


def _summary(violations: Sequence[Violation]) -> str:
    match violations:
        case [only]:
            return f"{only.field}: {only.message}." if only.field else f"{only.message}."
        case _:
            names = ", ".join(violation.field for violation in violations[:8])
            more = ", …" if len(violations) > 8 else ""
            return f"{len(violations)} fields are invalid: {names}{more}."


def show_value(value: object) -> str:
    """A value as shown in a violation: its `repr`, shortened."""
    return _SHORT.repr(value)


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
