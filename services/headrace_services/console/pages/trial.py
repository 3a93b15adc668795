"""A trial: what happened to it and why, its metrics, and its log."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from headrace.cli import views
from headrace.client import AsyncClient
from headrace.client.events import DecisionMade, Event
from headrace.client.wording import kept_result, left_out, other_code
from headrace_services.console.rendering import Content

MOST_LINES: Final = 500
"""How many entries of its history the page shows; its JSON has all."""


async def trial(request: Request, client: AsyncClient) -> Content:
    """A trial with its history."""
    handle = client.study(request.path_params["study"])
    one = handle.trial(request.path_params["trial"])
    info, story = await handle.status(), await one.explain()
    found = story.trial
    params = {name: found.params[name] for name in info.spec.space if name in found.params}
    return Content(
        template="trial.html",
        title=f"{info.name}/{found.number}",
        data={
            "trial": views.trial(found),
            "decisions": [views.explanation(one) for one in story.decisions],
            "events": [views.event(event) for event in story.events],
        },
        more={
            "study": info,
            "trial": found,
            "params": params,
            "events": story.events[-MOST_LINES:],
            "left": max(0, len(story.events) - MOST_LINES),
            "why": _explanation,
            "notes": [*filter(None, [kept_result(found), other_code(found)]), *left_out(found)],
        },
    )


def _explanation(event: Event) -> dict[str, object] | None:
    """The numbers behind a decision."""
    return views.explanation(event.detail.explanation) if isinstance(event.detail, DecisionMade) else None


async def log(request: Request, client: AsyncClient) -> Response:
    """The next part of the log, as text, after the cursor `after`; the headers say how it continues."""
    one = client.study(request.path_params["study"]).trial(request.path_params["trial"])
    part = await one.read_log(request.query_params.get("after", ""))
    headers = {"x-next": part.cursor, "x-complete": str(int(part.complete)), "x-notes": str(len(part.notes))}
    return Response(part.data, media_type="text/plain; charset=utf-8", headers=headers)


async def log_page(request: Request, client: AsyncClient) -> Content:
    """The page that shows the log."""
    one = client.study(request.path_params["study"]).trial(request.path_params["trial"])
    found = await one.info()
    return Content(
        template="log.html",
        title=f"Log of {found.study}/{found.number}",
        data={"trial": views.trial(found)},
        more={"trial": found},
    )
