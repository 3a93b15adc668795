"""What is refused before any page is asked: other hosts' names, requests from other sites; and the headers of every
answer. Plain ASGI, so that streams pass through unbuffered.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        why = self._why_refused(scope["method"], Headers(scope=scope))
        app = PlainTextResponse(why + "\n", status_code=403) if why else self._app
        await app(scope, receive, send_with_headers)

    def _why_refused(self, method: str, headers: Headers) -> str:
        """Why a request is refused; empty if it is not."""
        host = headers.get("host", "")
        if _name(host) not in self._settings.allowed:
            return f"This console does not answer for the host '{host[:200]}'. Start it with --host to allow a name."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "This request comes from another site."
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site == "cross-site" and (mode != "navigate" or method != "GET"):
            return "This request comes from another site."
        if (
            not headers.get("content-length", "0").isdecimal()
            or int(headers.get("content-length", "0")) > MOST_BODY
        ):
            return "This request is too large."
        return ""


def _name(host: str) -> str:
    """A host without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()
