"""A study: its state, its trials, and the curves that the page's scripts draw."""

import asyncio
from dataclasses import asdict, replace
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.cli import plans, views
from headrace.client import AsyncClient
from headrace.client.convert import in_order
from headrace.client.importance import about
from headrace.client.model import Listing, StudyInfo, TrialInfo
from headrace.client.outcome import Outcome
from headrace.client.wording import kept_result, left_out
from headrace.errors import BadPageTokenError, HeadraceError, InvalidFieldError
from headrace.query import LEADING
from headrace.spec import PbtPolicy
from headrace_services.console.columns import packed
from headrace_services.console.pages import trial_columns
from headrace_services.console.rendering import Content

PAGE_SIZE: Final = 50
MOST_POINTS: Final = 200
"""How many points of each trial a picture of many trials shows."""
MOST_POINTS_OF_FEW: Final = 2000


async def study(request: Request, client: AsyncClient) -> Content:
    """A study with one page of its trials: filter `q`, order `sort`, page `page`."""
    handle = client.study(request.path_params["study"])
    asked = request.query_params
    text, sort = asked.get("q", ""), asked.get("sort", LEADING)
    page = handle.trials_page((), size=PAGE_SIZE, token=asked.get("page", ""), filter=text, order_by=sort)
    info, found = await asyncio.gather(handle.status(), page, return_exceptions=True)
    if isinstance(info, BaseException):
        raise info
    wrong, token, trials = "", "", Listing[TrialInfo]()
    match found:
        case InvalidFieldError() | BadPageTokenError():
            wrong = str(found)
        case BaseException():
            raise found
        case trials, token:
            trials[:] = [replace(one, params=in_order(one.params, info.spec.space)) for one in trials]
    sort = _leading(info) if sort == LEADING else sort
    offered = trial_columns.offered(info, trials)
    columns = trial_columns.chosen(offered, asked.getlist("col"))
    shown = {one.key for one in columns}
    return Content(
        template="study.html",
        title=info.name,
        data={
            "study": views.study(info),
            "filter": text,
            "sort": sort,
            "error": wrong,
            "trials": [views.trial(one) for one in trials],
            "next_page": token,
        },
        more={
            "study": info,
            "outcome": Outcome(info),
            "trials": trials,
            "offered": offered,
            "columns": columns,
            "shown": shown,
            "col": asked.getlist("col"),
            "metrics": [one.metric for one in info.spec.objectives],
            "population": isinstance(info.spec.policy, PbtPolicy),
            "has_plan": plans.plan_of(info.spec) is not None,
            "others": [name for name in info.spec.space if f"param.{name}" not in shown],
            "unshown": [*left_out(info), *left_out(trials)],
            "kept": kept_result,
        },
        status=400 if wrong else 200,
    )


def _leading(info: StudyInfo) -> str:
    if info.spec.further_objectives:
        return "number"
    return "-score" if Outcome(info).maximize else "score"


async def importance(request: Request, client: AsyncClient) -> Content:
    """How much each parameter matters: a part of the study's page, as it may take seconds."""
    handle = client.study(request.path_params["study"])
    try:
        found, why = await handle.importance(), ""
    except HeadraceError as error:
        found, why = (), error.message
    return Content(
        template="importance.html",
        title="Importance",
        data={"importance": [asdict(one) for one in found], "error": why},
        more={"about": about, "found": found},
    )


async def curves(request: Request, client: AsyncClient) -> Response:
    """The columns of the trials that match `q`; of `numbers` alone, if they are given."""
    handle = client.study(request.path_params["study"])
    numbers = request.query_params.get("numbers", "")
    few = numbers.count(",") < MOST_COMPARED_TRIALS and bool(numbers)
    found = await handle.curves(
        filter=_filter(request), most_points=MOST_POINTS_OF_FEW if few else MOST_POINTS
    )
    return Response(packed(found), media_type="application/octet-stream")


async def numbers(request: Request, client: AsyncClient) -> Response:
    """The numbers of the trials that match `q`, of `numbers` alone if they are given: for a page that has their
    curves already."""
    found = await client.study(request.path_params["study"]).trial_numbers(_filter(request))
    return JSONResponse(found)


def _filter(request: Request) -> str:
    text, numbers = request.query_params.get("q", ""), request.query_params.get("numbers", "")
    return f"{text} number:{numbers}" if numbers else text


MOST_COMPARED_TRIALS: Final = 4
