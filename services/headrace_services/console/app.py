"""The application: its routes, and what errors look like."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headrace.client import AsyncClient
from headrace.errors import (
    BadPageTokenError,
    BusyError,
    DatabaseUnavailableError,
    DeadlineError,
    DrainingError,
    HeadraceError,
    InvalidFieldError,
    LogGoneError,
    PermissionDeniedError,
    StoreAwayError,
    StudyEndedError,
    StudyNotFoundError,
    TrialEndedError,
    TrialNotFoundError,
    UnauthenticatedError,
    UnreachableError,
    WorkerAwayError,
)
from headrace_services.console import access
from headrace_services.console.guard import TOO_LARGE, Guard
from headrace_services.console.leaving import unless_left
from headrace_services.console.live import Watches
from headrace_services.console.pages import (
    bubbles,
    cluster,
    events,
    gantt,
    lineage,
    plan,
    studies,
    study,
    trial,
)
from headrace_services.console.rendering import HERE, Content, answer
from headrace_services.console.sessions import FullError, Sessions
from headrace_services.console.settings import Settings

log = logging.getLogger(__name__)

Page = Callable[[Request, AsyncClient], Coroutine[Any, Any, Content | Response]]

PAGES: Final[dict[str, Page]] = {
    "/": studies.studies,
    "/studies": studies.studies,
    "/compare": studies.compare,
    "/studies/{study}": study.study,
    "/studies/{study}/importance": study.importance,
    "/studies/{study}/events": events.events,
    "/studies/{study}/gantt": gantt.gantt,
    "/studies/{study}/lineage": lineage.lineage,
    "/studies/{study}/plan": plan.plan,
    "/studies/{study}/trials/{trial:int}": trial.trial,
    "/studies/{study}/trials/{trial:int}/log": trial.log_page,
    "/cluster": cluster.cluster,
    "/bubbles": bubbles.bubbles,
    "/about": cluster.about,
}
"""Each also answers in JSON, under its path with `.json`."""
DATA: Final[dict[str, Page]] = {
    "/studies/{study}/curves.bin": study.curves,
    "/studies/{study}/numbers.json": study.numbers,
    "/studies/{study}/trials/{trial:int}/log.txt": trial.log,
}
STATUS: Final[dict[type[HeadraceError], int]] = {
    StudyNotFoundError: 404,
    TrialNotFoundError: 404,
    PermissionDeniedError: 403,
    InvalidFieldError: 400,
    BadPageTokenError: 400,
    LogGoneError: 404,
    StudyEndedError: 409,
    TrialEndedError: 409,
    UnreachableError: 503,
    DeadlineError: 503,
    BusyError: 503,
    DatabaseUnavailableError: 503,
    DrainingError: 503,
    StoreAwayError: 503,
    WorkerAwayError: 503,
}
SAID: Final = {404: "There is no such page.", 413: TOO_LARGE}
SWEEP_S: Final = 60.0
LEFT: Final = 499
"""The status of an answer to a browser that has left, as nginx logs it."""


def build(settings: Settings) -> Guard:
    """The application for a scheduler, behind its guard."""
    routes = [
        *(Route(f"{path}.json", _page(page)) for path, page in PAGES.items() if path != "/"),
        *(Route(path, _page(page)) for path, page in DATA.items()),
        Route("/studies/{study}/live", live),
        *(Route(path, _page(page)) for path, page in PAGES.items()),
        Route("/login", access.login, methods=["GET", "POST"]),
        Route("/logout", access.logout, methods=["POST"]),
        Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
    ]
    app = Starlette(
        routes=routes,
        lifespan=_lifespan,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)],
        exception_handlers={HTTPException: _http_error, Exception: _failure},
    )
    app.state.settings = settings
    app.state.sessions = Sessions(settings.target)
    app.state.watches = Watches()
    return Guard(app, settings)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await app.state.sessions.close_idle(app.state.watches.uses)

    sweeping = asyncio.create_task(sweep())
    yield
    sweeping.cancel()
    await app.state.watches.close()
    await app.state.sessions.close()


def _page(page: Page) -> Callable[[Request], Awaitable[Response]]:
    """A page as a handler: it gets its caller's connection, and its errors are shown."""

    async def handle(request: Request) -> Response:
        try:
            async with access.connected(request, access.token_of(request)) as client:
                found = await unless_left(request, page(request, client))
        except ClientDisconnect:
            return Response(status_code=LEFT)  # nobody gets it
        except UnauthenticatedError as error:
            return await access.not_logged_in(request, error)
        except FullError:
            return _full(request)
        except HeadraceError as error:
            return _shown(request, error)
        return found if isinstance(found, Response) else answer(request, found)

    return handle


async def live(request: Request) -> Response:
    """The stream that tells a page of a study that something changed."""
    try:
        token = access.token_of(request)
        async with access.connected(request, token) as client:
            await client.study(request.path_params["study"]).status()  # a refusal is an answer, not a stream
    except UnauthenticatedError as error:
        return await access.not_logged_in(request, error)
    except FullError:
        return _full(request)
    except HeadraceError as error:
        return _shown(request, error)
    messages = _messages(request, token)
    headers = {"x-accel-buffering": "no"}  # proxies such as nginx then pass each message on at once
    return StreamingResponse(messages, media_type="text/event-stream", headers=headers)


async def _messages(request: Request, token: str) -> AsyncIterator[str]:
    """The stream's messages; the connection stays open meanwhile."""
    watches: Watches = request.app.state.watches
    over = access.logged_out(request)
    with access.sessions_of(request).using(token) as connection:
        async with aclosing(watches.messages(connection.client, token, request.path_params["study"])) as told:
            async for message in told:
                if over():
                    return
                yield message


def _full(request: Request) -> Response:
    return access.failed(request, "Too many tokens are in use at once.", "Try again in a while.", 503)


def _shown(request: Request, error: HeadraceError) -> Response:
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 502)
    return access.failed(request, error.message, error.remedy or "", status)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    # In a mounted folder it is that folder's path, but the links on the page are those of the whole.
    request.scope["root_path"] = request.app.state.settings.root_path
    said = SAID.get(status, "This page cannot be called like that.")
    return access.failed(request, said, "", status)


async def _failure(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    why, remedy = "The console failed on this page.", "Its log has the details; please report them."
    return access.failed(request, why, remedy, 500)
