"""Who asks: the session of the cookie, login and logout.

With a scheduler that asks for no token there is no login. Such a console listens on this machine alone.
"""

import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

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


def client_of(request: Request, token: str) -> AsyncClient:
    """The connection for a token. Without one, only a console of this machine has a connection at all."""
    settings: Settings = request.app.state.settings
    if not token and not settings.is_local:
        raise UnauthenticatedError("this page asks for a token")
    return sessions_of(request).client(token)


async def not_logged_in(request: Request, error: UnauthenticatedError) -> Response:
    """What somebody gets whose token is missing, wrong or expired."""
    token = token_of(request)
    if token:
        await sessions_of(request).forget_token(token)
    if wants_json(request) or request.headers.get("accept") == "text/event-stream":
        return answer(
            request, Content(template="error.html", title="Log in", data={"error": error.message}, status=401)
        )
    root = request.scope.get("root_path", "")
    path = request.url.path.removeprefix(root)
    return RedirectResponse(f"{root}/login?next={path}", 303)


def login_page(request: Request, why: str = "", status: int = 200) -> Response:
    """The form that asks for a token."""
    csrf = secrets.token_urlsafe(24)
    content = Content(
        template="login.html",
        title="Log in",
        data={"error": why},
        more={"csrf": csrf, "next": _own_path(request.query_params.get("next", ""))},
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
    sent, expected = str(form.get("csrf", "")), request.cookies.get("headrace_login", "")
    if not expected or not secrets.compare_digest(sent, expected):
        return login_page(request, "This form has expired. Send it again.", 400)
    token = str(form.get("token", "")).strip()
    if not token:
        return login_page(request, "Give a token, such as one that `headrace token create` printed.", 400)
    client = sessions_of(request).client(token)
    try:
        who = await client.who_am_i()
        settings: Settings = request.app.state.settings
        if who.token is None and not settings.is_local:
            return login_page(
                request, "The scheduler asks for no token, so this console serves nobody here.", 403
            )
        cookie, _ = sessions_of(request).open(token, who.token.name if who.token else "")
    except FullError:
        return login_page(request, "Too many people are logged in. Try again later.", 503)
    except (UnauthenticatedError, InvalidFieldError):
        await sessions_of(request).forget_token(token)
        return login_page(request, "The scheduler does not accept this token.", 401)
    except HeadraceError as error:
        return login_page(request, f"The token could not be checked: {error.message}", 503)
    root = request.scope.get("root_path", "")
    response = RedirectResponse(root + _own_path(str(form.get("next", ""))), 303)
    _set_cookie(request, response, COOKIE, cookie, int(LONGEST_S))
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    cookie = request.cookies.get(COOKIE, "")
    session: Session | None = sessions_of(request).find(cookie)
    form = await request.form(max_files=0, max_fields=10)
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}/login", 303)
    if session is not None and secrets.compare_digest(str(form.get("csrf", "")), session.csrf):
        sessions_of(request).end(cookie)
        response.delete_cookie(COOKIE, path=root or "/")
    return response


def _own_path(path: str) -> str:
    """A path of this console; `/` for anything else, such as the address of another site."""
    return path if path.startswith("/") and not path.startswith("//") and "\\" not in path else "/"


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
