"""A study's training plan: what was asked, the answer, and the files that trials get."""

from typing import Any

from starlette.requests import Request

from headrace.cli import plans, views
from headrace.client import AsyncClient
from headrace.client.model import StudyInfo
from headrace_services.console.pages.plan_record import record_of
from headrace_services.console.rendering import Content


async def plan(request: Request, client: AsyncClient) -> Content:
    """The plan of a study, or of the study that it transfers to."""
    info = await client.study(request.path_params["study"]).status()
    found = plans.plan_of(info.spec)
    asked, record = question(info), record_of(found)
    return Content(
        template="plan.html",
        title=f"Plan of {info.name}",
        data={"plan": views.plan(found) if found else None, "question": asked},
        more={
            "study": info,
            "plan": found,
            "degrees": found.degrees.model_dump() if found else {},
            "record": record,
            "asked": {name: value for name, value in asked.items() if name not in ("model", "cluster")},
            "named": {
                name: asked.get(name) for name in ("model", "cluster") if isinstance(asked.get(name), str)
            },
        },
    )


def question(info: StudyInfo) -> dict[str, Any]:
    """What the planner was asked; empty if the study has the plan of another."""
    return info.spec.plan.question() if info.spec.plan is not None else {}
