"""Converts errors between Headrace's classes and gRPC statuses.

The server raises the classes of `headrace.errors` anywhere and translates them once, in its interceptor, with
`to_status`. The client turns a `grpc.RpcError` back into the same class with `from_rpc_error`. A user of the SDK
never sees `grpc.RpcError`.

The status travels in the trailing metadata of the call, which gRPC limits to 8 KiB. So `to_status` drops the last
violations of a very long list and says how many it dropped.
"""

from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from headrace.errors import (
    CATALOGUE,
    BusyError,
    CatalogueEntry,
    HeadraceError,
    InternalError,
    InvalidFieldError,
    PermissionDeniedError,
    TooLargeError,
    UnauthenticatedError,
    UnreachableError,
    Violation,
    entry_of,
)

DOMAIN: Final = "headrace"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_MESSAGE_BYTES: Final = 800
_STATUS_BYTES: Final = 4200
_BY_REASON: Final = {entry.reason: entry for entry in CATALOGUE if entry.reason is not None}
_CLIENT_ONLY: Final = {entry.status: entry for entry in CATALOGUE if entry.reason is None}
_WRITE_AFTER_END: Final = "Internal error from Core"
"""How grpc.aio reports a status that arrives while it writes (`set_internal_error`). The next attempt may get
the status.
"""
_OF_A_PROXY: Final = {
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}
"""Errors that a proxy in front of the server may send, without our details."""


def to_status(err: HeadraceError) -> Status:
    """The error as a `google.rpc.Status` (for `grpc_status.rpc_status.to_status`), within gRPC's size limit.

    An error without a reason, such as a DeadlineError, is only a status code: clients know its meaning."""
    entry = entry_of(err) or _BY_REASON["INTERNAL"]
    number: int = grpc.StatusCode[entry.status].value[0]
    status = Status(code=number, message=_cut(err.message, _MESSAGE_BYTES))
    if entry.reason is None:
        return status
    info = error_details_pb2.ErrorInfo(
        domain=DOMAIN, reason=entry.reason, metadata={"remedy": _cut(err.remedy, _MESSAGE_BYTES)}
    )
    status.details.add().Pack(info)
    if isinstance(err, InvalidFieldError):
        room = _STATUS_BYTES - status.ByteSize()
        status.details.add().Pack(_bad_request(err.violations, room))
    return status


def from_rpc_error(err: grpc.RpcError) -> HeadraceError:
    """The same exception that the server raised; without details, the one that the status code implies."""
    code, text = _code_and_text(err)
    status = _status_in(err)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN and info.reason in _BY_REASON and status is not None:
            return _rebuild(_BY_REASON[info.reason], status, info.metadata.get("remedy"))
    if code is grpc.StatusCode.CANCELLED and text == code.name:  # our own cancellation has a longer text
        return BusyError("The server dropped the call: it may have too many at once.")
    if code is grpc.StatusCode.INTERNAL and text == _WRITE_AFTER_END:
        return BusyError("The server ended the call before all of it was sent.")
    entry = _CLIENT_ONLY.get(code.name)
    if entry is not None and entry.error is UnreachableError:
        return UnreachableError(f"No Headrace server answers ({_clause(text)}).")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return TooLargeError(f"The message is too large: {_clause(text)}.")
    if entry is not None:
        return entry.error(f"{_clause(text)}.")
    if code in _OF_A_PROXY:
        return _OF_A_PROXY[code](f"The server answered {code.name}: {_clause(text)}.")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        remedy = "Update the server: it is older than this client."
        return InternalError(f"The server answered UNIMPLEMENTED: {_clause(text)}.", remedy=remedy)
    return InternalError(f"The server answered {code.name}: {_clause(text)}.")


def _rebuild(entry: CatalogueEntry, status: Status, remedy: str | None) -> HeadraceError:
    if entry.error is not InvalidFieldError:
        return entry.error(status.message, remedy=remedy)
    request = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(request):
            break
    return InvalidFieldError(map(_violation, request.field_violations), remedy=remedy)


def _bad_request(violations: Sequence[Violation], room: int) -> error_details_pb2.BadRequest:
    """As many violations as fit, each as message, value and remedy on its own line."""
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
                description=f"{left} more fields are invalid\n\nCorrect the others first.",
            )
            break
    return request


def _violation(field: error_details_pb2.BadRequest.FieldViolation) -> Violation:
    message, _, rest = field.description.partition("\n")
    value, _, remedy = rest.partition("\n")
    return Violation(field=field.field, message=message, value=value, remedy=remedy)


def _code_and_text(err: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """The status code and details. Every error that a call raises is also a `grpc.Call`, although its type does
    not say so.
    """
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


def _clause(text: str) -> str:
    """The text on one line, to be followed by a full stop."""
    return _one_line(text).rstrip(".!")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, limit_bytes: int) -> str:
    """The text, cut to the limit. gRPC writes a byte outside ASCII as three characters, so it counts as three."""
    if len(text) <= limit_bytes // 12:
        return text
    size = 0
    for index, character in enumerate(text):
        size += 1 if character.isascii() else 3 * len(character.encode(errors="replace"))
        if size > limit_bytes - 4:
            return text[:index] + "..."
    return text
