"""Pages of a list: their size, their start, and the token for the next one.

A token holds the key of the last item that was sent. So a page costs the same wherever it starts, and rows that
appear or disappear in between neither repeat nor hide others. It also holds a checksum over the key, the method
and its filters: a token of another list, or of the same list with another filter, is refused. The checksum is no
secret, so every replica computes the same one: a token grants nothing that the list itself does not show.

A page ends early if it would outgrow a gRPC message; the token says where to continue. An element that cannot be
shown is left out of its page, which names it with the reason.
"""

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from headrace.bounds.numbers import INT64
from headrace.errors import BadPageTokenError
from headrace.v1 import identity_pb2, project_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.store.defects import Defect, reason_of

log = logging.getLogger(__name__)

DEFAULT_SIZE = 100
MAX_SIZE = 1000
MAX_BYTES = 3 * 1024 * 1024
"""The size limit of a response's items: clients receive at most 4 MiB."""
_CHECKSUM_BYTES = 8

ListRequest = (
    pb.ListStudiesRequest
    | pb.ListTrialsRequest
    | pb.ReadCurvesRequest
    | pb.ListReportsRequest
    | pb.ListWorkersRequest
    | identity_pb2.ListTokensRequest
    | project_pb2.ListProjectsRequest
)
Key = tuple[int | str, ...]
Shape = tuple[type[int] | type[str], ...]
K = TypeVar("K")
T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A requested page: `size` items after the key `after`, or from the start."""

    size: int
    after: Key | None
    binding: bytes

    @property
    def limit(self) -> int:
        """How many items to read: one more than the page shows that there is a next page."""
        return self.size + 1

    def token_after(self, key: Key) -> str:
        """The token of a page that starts after a key."""
        return _token(key, self.binding)

    def fill(
        self,
        keys: Sequence[K],
        found: Sequence[T | Defect],
        convert: Callable[[T], M],
        place: Callable[[K], Key],
        name: Callable[[K], str],
    ) -> "Page[M]":
        """The page, from what was found for the first keys, at most `limit`; what cannot be shown is left out."""
        messages: list[M] = []
        unshown: list[pb.Unshown] = []
        size = taken = 0
        for key, item in zip(keys[: self.size], found, strict=False):
            message = shown(item, convert)
            if isinstance(message, Defect):
                unshown.append(pb.Unshown(name=name(key), reason=message.reason))
            else:
                size += message.ByteSize()
                if messages and size > MAX_BYTES:
                    break
                messages.append(message)
            taken += 1
        token = self.token_after(place(keys[taken - 1])) if taken < len(keys) else ""
        return Page(messages=messages, token=token, unshown=unshown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[M]):
    """One page of a list."""

    messages: list[M]
    token: str
    """The token of the next page; empty on the last one."""
    unshown: list[pb.Unshown]


def shown(item: T | Defect, convert: Callable[[T], M]) -> M | Defect:
    """The message of an element that was found, or the reason why there is none."""
    if isinstance(item, Defect):
        return item
    try:
        message = convert(item)
    except Exception as error:
        log.warning("an element of a list cannot be shown", exc_info=True)
        return Defect(reason_of(error))
    size = message.ByteSize()
    if size > MAX_BYTES:
        return Defect(f"it is too large for an answer: {size / 2**20:.1f} MiB")
    return message


def window(request: ListRequest, shape: Shape, *, default: int = DEFAULT_SIZE) -> Window:
    """The page that a request asks for, in a list whose keys have the types of `shape`.

    A size of 0 is the default, and one over the maximum is the maximum. Raises BadPageTokenError if the token is
    invalid.
    """
    binding = _binding(request)
    return Window(
        size=min(request.page_size, MAX_SIZE) or default,
        after=_key(request.page_token, binding, shape) if request.page_token else None,
        binding=binding,
    )


def fitting(messages: Iterable[M], *, beside: int = 0) -> list[M]:
    """The first messages that fit in one response with `beside` bytes of other content; at least one."""
    fit: list[M] = []
    size = beside
    for message in messages:
        size += message.ByteSize()
        if fit and size > MAX_BYTES:
            break
        fit.append(message)
    return fit


def _binding(request: ListRequest) -> bytes:
    """What a token is bound to: the caller's project, the method and all its parameters except the page."""
    filters = type(request)()
    filters.CopyFrom(request)  # type: ignore[arg-type]  # the same type, which mypy cannot see in a union
    filters.ClearField("page_size")
    filters.ClearField("page_token")
    asked = f"{caller().project}\0{type(request).__name__}\0"
    return asked.encode() + filters.SerializeToString(deterministic=True)


def _token(key: Key, binding: bytes) -> str:
    text = json.dumps(key, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_checksum(text, binding) + text).decode().rstrip("=")


def _key(token: str, binding: bytes, shape: Shape) -> Key:
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise foreign(token) from None
    checksum, text = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
    if checksum != _checksum(text, binding):
        raise foreign(token)
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):  # anyone can make a token with a correct checksum
        raise foreign(token) from None
    if not isinstance(key, list) or tuple(map(type, key)) != shape or not all(map(_storable, key)):
        raise foreign(token)
    return tuple(key)


def _storable(part: int | str) -> bool:
    """Whether the database can compare its keys with a part of a token."""
    return "\0" not in part if isinstance(part, str) else abs(part) <= INT64


def _checksum(text: bytes, binding: bytes) -> bytes:
    return hashlib.blake2b(
        binding + b"\0" + text, digest_size=_CHECKSUM_BYTES, person=b"headrace page"
    ).digest()


def foreign(token: str) -> BadPageTokenError:
    """The error for a token of another list, or of none."""
    shown = token if len(token) <= 40 else token[:37] + "..."
    return BadPageTokenError(f"page_token '{shown}' was not issued by this list with these filters")
