"""From what a page found to an answer: HTML for browsers, JSON under the same path with `.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headrace.cli.output import jsonable
from headrace.cli.states import SYMBOLS
from headrace.client import wording

HERE: Final = Path(__file__).parent
_environment = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a page shows: `data` in JSON's types, documented, and `more` for its template alone."""

    template: str
    title: str
    data: Any
    more: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


def wants_json(request: Request) -> bool:
    """Whether the JSON of a page was asked for."""
    return request.url.path.endswith(".json")


def answer(request: Request, content: Content) -> Response:
    """The answer with a page's content."""
    if wants_json(request):
        body = json.dumps(jsonable(content.data), ensure_ascii=False)
        return Response(body, content.status, media_type="application/json")
    session = getattr(request.state, "session", None)
    html = _environment.get_template(content.template).render(
        **{"title": content.title, "data": content.data, **content.more},
        request=request,
        root=request.scope.get("root_path", ""),
        path=request.url.path,
        session=session,
        now=datetime.now(UTC),
    )
    return HTMLResponse(html, content.status)


def _query(request: Request, **changes: object) -> str:
    """The present address with other parameters; None removes one."""
    kept = [
        (name, value) for name, value in request.query_params.multi_items() if value and name not in changes
    ]
    kept += [(name, str(value)) for name, value in changes.items() if value is not None and value != ""]
    return f"?{urlencode(kept)}" if kept else "?"


def _clock(time: datetime | None) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if time else "-"


_environment.globals.update(query=_query, symbols=SYMBOLS, plural=wording.plural)
_environment.filters.update(
    number=wording.number,
    scalar=wording.scalar,
    params=wording.params,
    duration=wording.duration,
    ago=wording.ago,
    size=wording.size,
    clock=_clock,
)
