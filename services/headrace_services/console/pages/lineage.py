"""Who copied whom in a population, and the parameters over the steps: a part of a study's page, drawn on the server."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from starlette.requests import Request

from headrace.cli import views, wording
from headrace.client import AsyncClient
from headrace.client.lineage import Stretch, changes, own_stretches, schedule
from headrace.client.model import TrialInfo
from headrace.spec import CategoricalDomain, Domain, Value
from headrace_services.console.rendering import Content

HEIGHT: Final = 170
MOST_MEMBERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a panel: `x` in percent, `y` in pixels."""

    kind: str
    x1: float
    y1: float
    x2: float
    y2: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One parameter over the steps, with its smallest and largest value."""

    name: str
    lines: tuple[Line, ...]
    low: str
    high: str


def panels(
    members: Sequence[TrialInfo], space: Mapping[str, Domain], best: int | None, last_step: int
) -> list[Panel]:
    """A panel for each parameter that changed."""
    by_number = {one.number: one for one in members}
    trained = schedule(by_number, best) if best in by_number and best is not None else []
    names = [name for name in space if changes(members, name)]
    return [_panel(name, members, space[name], trained, max(last_step, 1)) for name in names]


def _panel(
    name: str, members: Sequence[TrialInfo], domain: Domain, trained: Sequence[Stretch], last_step: int
) -> Panel:
    own = {one.number: [s for s in own_stretches(one) if name in s.params] for one in members}
    values = {_place(s.params[name], domain): s.params[name] for some in own.values() for s in some}
    low, high = min(values), max(values)

    def x(step: int) -> float:
        return round(100 * step / last_step, 3)

    def y(value: Value) -> float:
        return round(HEIGHT - 10 - (HEIGHT - 20) * (_place(value, domain) - low) / ((high - low) or 1), 1)

    def level(stretch: Stretch, kind: str) -> Line:
        value = stretch.params[name]
        said = f"trial {stretch.trial}, steps {stretch.start} to {stretch.end}: {wording.scalar(value)}"
        return Line(kind=kind, x1=x(stretch.start), x2=x(stretch.end), y1=y(value), y2=y(value), text=said)

    lines = [level(stretch, "member") for some in own.values() for stretch in some]
    for one in members:
        for copied in one.lineage:
            lent = next((s for s in own.get(copied.donor, []) if s.end >= copied.step), None)
            if lent is not None and name in copied.params:
                here = x(copied.step)
                said = f"trial {one.number} copied trial {copied.donor} at step {copied.step}"
                lines.append(
                    Line(
                        kind="copy",
                        x1=here,
                        x2=here,
                        y1=y(lent.params[name]),
                        y2=y(copied.params[name]),
                        text=said,
                    )
                )
    lines += [level(stretch, "best") for stretch in trained if name in stretch.params]
    return Panel(
        name=name, lines=tuple(lines), low=wording.scalar(values[low]), high=wording.scalar(values[high])
    )


def _place(value: Value, domain: Domain) -> float:
    if isinstance(domain, CategoricalDomain):
        return float(domain.values.index(value)) if value in domain.values else -1.0
    return math.log10(float(value)) if domain.log and float(value) > 0 else float(value)


async def lineage(request: Request, client: AsyncClient) -> Content:
    """The lineage of a population."""
    handle = client.study(request.path_params["study"])
    info = await handle.status()
    members = [one for one in await handle.trials() if not one.baseline][:MOST_MEMBERS]
    best = info.leader.number if info.leader is not None else None
    found = panels(members, info.spec.space, best, max((one.step for one in members), default=0))
    copied = {one.number: [asdict(copy) for copy in one.lineage] for one in members if one.lineage}
    return Content(
        template="lineage.html",
        title=f"Lineage of {info.name}",
        data={"copied": copied, "best": views.trial(info.leader) if info.leader else None},
        more={
            "study": info,
            "panels": found,
            "height": HEIGHT,
            "most": max((m.step for m in members), default=0),
        },
    )
