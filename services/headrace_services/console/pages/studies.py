"""The list of studies, and several of them side by side."""

from starlette.requests import Request

from headrace.cli import views
from headrace.client import AsyncClient
from headrace.client.outcome import Outcome
from headrace.errors import InvalidFieldError
from headrace_services.console.rendering import Content

MOST_COMPARED = 8


async def studies(request: Request, client: AsyncClient) -> Content:
    """All studies, or those that match the filter `q`."""
    text, wrong = request.query_params.get("q", ""), ""
    try:
        found = await client.studies(text)
    except InvalidFieldError as error:
        found, wrong = await client.studies(), str(error)
    return Content(
        template="studies.html",
        title="Studies",
        data={"filter": text, "error": wrong, "studies": [views.study(one) for one in found]},
        more={"studies": found, "unshown": found.unshown},
        status=400 if wrong else 200,
    )


async def compare(request: Request, client: AsyncClient) -> Content:
    """The studies named by `study`, at most eight, side by side."""
    names = list(dict.fromkeys(request.query_params.getlist("study")))[:MOST_COMPARED]
    infos = [await client.study(name).status() for name in names]
    goals = {(one.spec.objective.metric, one.spec.objective.goal) for one in infos}
    return Content(
        template="compare.html",
        title="Compare",
        data={"studies": [views.study(one) for one in infos], "comparable": len(goals) <= 1},
        more={"studies": infos, "outcomes": [Outcome(one) for one in infos]},
    )
