"""Calls to a Kubernetes API server, in JSON, each within a time limit.

A request that gets no answer, or 429 or a 5xx, is repeated a few times. That is safe for every call here: reads and
deletes by uid change nothing more the second time, a second create is answered 409, and so is a second update, which
carries the version that it replaces.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from headrace.launch.engine import EngineError
from headrace.launch.kubernetes.access import Access

CALL_S: Final = 20.0
"""How long an attempt may wait for the answer to begin, and then for all of it."""
TRIES: Final = 4
PAGE: Final = 200
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_LARGEST_BYTES: Final = 32 << 20


class StatusError(EngineError):
    """The API server refused a request."""

    def __init__(self, code: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class Api:
    """An API server, as one user in one namespace."""

    def __init__(
        self,
        access: Access,
        namespace: str = "",
        *,
        call_s: float = CALL_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access = access
        self.namespace = namespace or access.namespace
        self._call_s = call_s
        self._sleep = sleep
        self._opener: OpenerDirector = build_opener(
            *([] if access.tls is None else [HTTPSHandler(context=access.tls)]),
            ProxyHandler(),
            _NoRedirects(),
        )

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A new object. Raises StatusError with 409 if there is one of this name."""
        return self._call("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A new content. Raises StatusError with 409 if the object is no longer the one that `body` replaces."""
        return self._call("PUT", path, body)

    def delete(self, path: str, *, uid: str) -> None:
        """Deletes an object and, before it, what belongs to it; nothing if it is gone or is another one."""
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        try:
            self._call("DELETE", path, body)
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    def get(self, path: str) -> dict[str, Any] | None:
        """An object; None if there is none."""
        try:
            return self._call("GET", path)
        except StatusError as error:
            if error.code != 404:
                raise
            return None

    def list(self, path: str, labels: str) -> list[dict[str, Any]]:
        """All objects with these labels."""
        for _ in range(TRIES):
            try:
                return list(self._pages(path, labels))
            except StatusError as error:
                if error.code != 410:  # the place in the list has expired
                    raise
        raise EngineError("The list of the API server expires again and again.", remedy="Try again later.")

    def _pages(self, path: str, labels: str) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            query = {"labelSelector": labels, "limit": str(PAGE), **({"continue": token} if token else {})}
            found = self._call("GET", f"{path}?{urlencode(query)}")
            yield from found.get("items") or ()
            token = (found.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        for attempt in range(1, TRIES + 1):
            try:
                return self._logged_in(method, path, body)
            except _Again as error:
                if attempt == TRIES:
                    raise error.final from None
                self._sleep(min(_LONGEST_PAUSE_S, error.after_s or _PAUSE_S * 2**attempt))
        raise AssertionError  # the last attempt raises

    def _logged_in(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """One attempt, and another one after a new login if the server does not accept the old one."""
        try:
            return self._once(method, path, body)
        except StatusError as error:
            if error.code != 401 or not self._access.renew():
                raise
        return self._once(method, path, body)

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        url = f"{self._access.server}{path}"
        asked = Request(url, None if body is None else json.dumps(body).encode(), method=method)  # noqa: S310 - `access` checks it
        asked.add_header("Accept", "application/json")
        if body is not None:
            asked.add_header("Content-Type", "application/json")
        if bearer := self._access.bearer():
            asked.add_header("Authorization", f"Bearer {bearer}")
        try:
            with self._opener.open(asked, timeout=self._call_s) as answer:
                found = json.loads(_content(answer, self._call_s, _LARGEST_BYTES))
        except HTTPError as error:
            with error:
                raise _refused(error, _message(error, self._call_s), method, path) from None
        except (OSError, HTTPException) as error:  # also timeouts, and answers that are cut off
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise _Again(
                EngineError(
                    f"The Kubernetes API server at {self._access.server} does not answer: {reason}.",
                    remedy="Check the network, and the server in the kubeconfig.",
                )
            ) from None
        except ValueError as error:
            raise _Again(
                EngineError(f"The answer of {self._access.server} is not JSON: {error}.", remedy="")
            ) from None
        if not isinstance(found, dict):
            raise EngineError(
                f"The answer of {self._access.server} to {method} {path} is no object.", remedy=""
            )
        return found


class _Again(Exception):  # noqa: N818  # is not an error of its own
    """An attempt that may be repeated, and the error if it was the last one."""

    def __init__(self, final: EngineError, after_s: float | None = None) -> None:
        self.final, self.after_s = final, after_s
        super().__init__(str(final))


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an answer: following one would send the login to another server."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _content(answer: Any, limit_s: float, largest_bytes: int) -> bytes:
    """What a response holds. Raises TimeoutError if it has not arrived in time, however it trickles."""
    deadline = time.monotonic() + limit_s
    found = bytearray()
    while len(found) < largest_bytes and (part := answer.read1(1 << 16)):
        found += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return bytes(found)


def _refused(error: HTTPError, said: str, method: str, path: str) -> Exception:
    place = path.partition("?")[0]
    match error.code:
        case 401:
            return StatusError(
                401, f"Kubernetes does not know this user: {said}.", "Log in to the cluster again."
            )
        case 403:
            return StatusError(403, f"Kubernetes forbids {method} {place}: {said}.", _remedy_of_403(said))
        case 301 | 302 | 303 | 307 | 308:
            to = error.headers.get("Location", "another address")
            return StatusError(
                error.code,
                f"Kubernetes redirects {method} {place} to {to}, which is not followed.",
                "Give the API server's own address in the kubeconfig.",
            )
        case 429 | 500 | 502 | 503 | 504:
            final = StatusError(error.code, f"Kubernetes answered {error.code} to {method} {place}: {said}.")
            return _Again(final, _seconds(error.headers.get("Retry-After")))
        case _:
            return StatusError(error.code, f"Kubernetes answered {error.code} to {method} {place}: {said}.")


def _remedy_of_403(said: str) -> str:
    """The API server answers 403 to rights that are missing, to a quota that is used up, and to policies."""
    if 'User "' in said and " cannot " in said:
        return "The role in deploy/kubernetes/launch/access.yaml allows what is needed."
    if "quota" in said:
        return "Lower --max, or have the quota of the namespace raised."
    return "Change the template so that the cluster's policies admit it, or ask whoever runs the cluster."


def _message(error: HTTPError, limit_s: float) -> str:
    try:
        text = _content(error, limit_s, 100_000)
        found = json.loads(text)
        return str(found["message"]).rstrip(".")
    except (OSError, HTTPException):
        return error.reason
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace").strip() or error.reason


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() else None
