"""What is refused before any page is asked: other hosts' names, requests from other sites, large bodies; and the
headers of every answer. Plain ASGI, so that streams pass through unbuffered.

It wraps the whole application. As one of its middlewares it would miss the answers to failures, which Starlette
sends from outside of them.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from headrace_services.console.settings import Settings

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
MOST_BODY: Final = 64 * 1024
LONGEST_LENGTH: Final = 12
"""How many digits a content length may have: Python refuses to read thousands of them."""
TOO_LARGE: Final = "This request is too large."


class Guard:
    """The layer around the application."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        if root and scope["path"].startswith(f"{root}{root}/"):
            # The server puts the root path in front, for a proxy that removed it. This one passed it on.
            scope["path"] = scope["path"].removeprefix(root)
        size, static = 0, _is_static(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache" if static else "no-store")
            await send(message)

        async def receive_bounded() -> Message:
            nonlocal size  # a body in chunks has no length beforehand
            message = await receive()
            size += len(message.get("body", b""))
            if size > MOST_BODY:
                raise HTTPException(413)
            return message

        why = self._why_refused(scope["method"], Headers(scope=scope))
        if why:
            status = 413 if why == TOO_LARGE else 403
            await PlainTextResponse(why + "\n", status)(scope, receive, send_with_headers)
            return
        await self.app(scope, receive_bounded, send_with_headers)

    def _why_refused(self, method: str, headers: Headers) -> str:
        """Why a request is refused; empty if it is not."""
        host = headers.get("host", "")
        if _name(host) not in self._settings.allowed:
            return f"This console does not answer for the host '{host[:200]}'. Start it with --host to allow a name."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "This request comes from another site."
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        # The ports of a machine, and the names below a domain, are one site: the cookie goes along with their requests.
        if site in {"cross-site", "same-site"} and (mode != "navigate" or method != "GET"):
            return "This request comes from another site."
        length = headers.get("content-length", "0")
        if len(length) > LONGEST_LENGTH or not length.isdecimal() or int(length) > MOST_BODY:
            return TOO_LARGE
        return ""


def _is_static(scope: Scope) -> bool:
    """Whether a request is for a file of the console: a browser keeps those, and asks whether they changed."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path.startswith("/static/")


def _name(host: str) -> str:
    """A host without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()
