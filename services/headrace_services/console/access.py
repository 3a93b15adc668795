"""Who asks: the session of the cookie, login and logout.

With a scheduler that asks for no token there is no login. Such a console listens on this machine alone.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from headrace.client import AsyncClient
from headrace.errors import HeadraceError, InvalidFieldError, UnauthenticatedError
from headrace_services.console.rendering import Content, answer, wants_json
from headrace_services.console.sessions import LONGEST_S, FullError, Session, Sessions
from headrace_services.console.settings import Settings

COOKIE: Final = "headrace_session"
BEARER: Final = "bearer "


def sessions_of(request: Request) -> Sessions:
    """The console's sessions."""
    sessions: Sessions = request.app.state.sessions
    return sessions


def token_of(request: Request) -> str:
    """The token of a request: that of its `Authorization`, or of its session; empty if it has none."""
    header = request.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    session = sessions_of(request).find(request.cookies.get(COOKIE, ""))
    request.state.session = session
    return session.token if session else ""


def logged_out(request: Request) -> Callable[[], bool]:
    """Tells, as often as it is called, whether the session that made a request has ended; never for one without."""
    sessions, cookie = sessions_of(request), request.cookies.get(COOKIE, "")
    had = sessions.find(cookie) is not None and not request.headers.get("authorization")
    return lambda: had and sessions.find(cookie) is None


@asynccontextmanager
async def connected(request: Request, token: str) -> AsyncIterator[AsyncClient]:
    """The connection for a token. Without one, only a console of this machine has a connection at all.

    Raises UnauthenticatedError, and FullError if too many tokens are in use at once.
    """
    settings: Settings = request.app.state.settings
    if not token and not settings.is_local:
        raise UnauthenticatedError("this page asks for a token")
    with sessions_of(request).using(token) as connection:
        if not settings.is_local and not connection.checked:
            # A scheduler that asks for no token accepts any text as one: it would serve everybody through this console.
            if (await connection.client.who_am_i()).token is None:
                raise UnauthenticatedError(
                    "the scheduler asks for no token, so this console serves nobody here"
                )
            connection.checked = True
        yield connection.client


async def not_logged_in(request: Request, error: UnauthenticatedError) -> Response:
    """What somebody gets whose token is missing, wrong or expired."""
    token = token_of(request)
    if token:
        await sessions_of(request).forget_token(token)
    if not wants_html(request) or "authorization" in request.headers:
        response = failed(
            request, error.message, "Send a token as Authorization: Bearer TOKEN.", 401, "Log in"
        )
        response.headers["www-authenticate"] = "Bearer"
        return response
    root = request.scope.get("root_path", "")
    path = quote(request.url.path.removeprefix(root))
    asked = f"{path}?{request.url.query}" if request.url.query else path
    return RedirectResponse(f"{root}/login?{urlencode({'next': asked})}", 303)


def wants_html(request: Request) -> bool:
    """Whether a person's browser asks for a page: scripts and programs get no form to log in."""
    return not request.url.path.endswith((".json", ".bin", ".txt", "/live"))


def failed(
    request: Request, why: str, remedy: str, status: int, title: str = "Something is wrong"
) -> Response:
    """An error as the caller can read it: a page, JSON, or a line of text for data that is neither."""
    if not wants_html(request) and not wants_json(request):
        return PlainTextResponse(f"{why}\n{remedy}".strip() + "\n", status)
    data = {"error": why, "remedy": remedy}
    return answer(request, Content(template="error.html", title=title, data=data, status=status))


def login_page(request: Request, why: str = "", status: int = 200, then: str | None = None) -> Response:
    """The form that asks for a token."""
    csrf = secrets.token_urlsafe(24)
    content = Content(
        template="login.html",
        title="Log in",
        data={"error": why},
        more={
            "csrf": csrf,
            "next": _own_path(request.query_params.get("next", "") if then is None else then),
        },
        status=status,
    )
    response = answer(request, content)
    _set_cookie(request, response, "headrace_login", csrf, 3600)
    return response


async def login(request: Request) -> Response:
    """Check a token, and open a session with it."""
    if request.method == "GET":
        return login_page(request)
    form = await request.form(max_files=0, max_fields=10)
    then = str(form.get("next", ""))
    if not _same(str(form.get("csrf", "")), request.cookies.get("headrace_login", "")):
        return login_page(request, "This form has expired. Send it again.", 400, then)
    token = str(form.get("token", "")).strip()
    if not token:
        why = "Give a token, such as one that `headrace token create` printed."
        return login_page(request, why, 400, then)
    sessions = sessions_of(request)
    try:
        with sessions.using(token) as connection:
            who = await connection.client.who_am_i()
        settings: Settings = request.app.state.settings
        if who.token is None and not settings.is_local:
            why = "The scheduler asks for no token, so this console serves nobody here."
            return login_page(request, why, 403, then)
        sessions.end(request.cookies.get(COOKIE, ""))  # whoever used this browser before
        cookie, _ = sessions.open(token, who.token.name if who.token else "")
    except FullError:
        return login_page(request, "Too many people are logged in. Try again later.", 503, then)
    except (UnauthenticatedError, InvalidFieldError):
        await sessions.forget_token(token)
        return login_page(request, "The scheduler does not accept this token.", 401, then)
    except HeadraceError as error:
        return login_page(request, f"The token could not be checked: {error.message}", 503, then)
    root = request.scope.get("root_path", "")
    response = RedirectResponse(root + _own_path(then), 303)
    _set_cookie(request, response, COOKIE, cookie, int(LONGEST_S))
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    cookie = request.cookies.get(COOKIE, "")
    session: Session | None = sessions_of(request).find(cookie)
    form = await request.form(max_files=0, max_fields=10)
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}/login", 303)
    if session is not None and _same(str(form.get("csrf", "")), session.csrf):
        sessions_of(request).end(cookie)
        response.delete_cookie(COOKIE, path=root or "/")
    return response


def _same(sent: str, expected: str) -> bool:
    """Whether a form's token is the expected one, in a time that does not depend on where they differ."""
    return bool(expected) and secrets.compare_digest(sent.encode(), expected.encode())


def _own_path(path: str) -> str:
    """A path of this console; `/` for anything else, such as the address of another site."""
    own = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if own else "/"


def _set_cookie(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    settings: Settings = request.app.state.settings
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=request.scope.get("root_path", "") or "/",
        secure=settings.https,
        httponly=True,
        samesite="strict",
    )
