"""When trials were on which slots: a part of a study's page, drawn on the server.

Places on the time axis are percentages, so the picture takes whatever width there is and needs no script.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from starlette.requests import Request

from headrace.cli import wording
from headrace.client import AsyncClient
from headrace.client.events import TrialMoved
from headrace.report.data import Stay, stays
from headrace_services.console.rendering import Content

MOST_BARS: Final = 3000
"""How many attempts are drawn: the last ones."""
ROW: Final = 40
BAR: Final = 18
NARROWEST: Final = 0.15
"""The least width of a bar, in percent."""
TICKS: Final = (0, 25, 50, 75, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An attempt on one slot."""

    trial: int
    ending: str
    left: float
    width: float
    top: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The rows, from top to bottom, and their bars."""

    rows: tuple[tuple[str, int], ...]
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[int, str], ...]
    endings: tuple[str, ...]
    left_out: int

    @property
    def height(self) -> int:
        """In pixels."""
        return len(self.rows) * ROW + 24


def picture(found: Sequence[Stay]) -> Picture:
    """The picture of attempts, of which there is at least one."""
    shown = found[-MOST_BARS:]
    began, ended = min(one.start for one in shown), max(one.end for one in shown)
    length_s = max((ended - began).total_seconds(), 1e-9)

    def place(moment: datetime) -> float:
        return 100 * (moment - began).total_seconds() / length_s

    rows = sorted({(one.worker, slot) for one in shown for slot in one.slots or (0,)})
    tops = {row: number * ROW for number, row in enumerate(rows)}
    bars = []
    for one in shown:
        left = min(place(one.start), 100 - NARROWEST)
        took = wording.duration((one.end - one.start).total_seconds())
        reason = f"\n{one.detail.splitlines()[0][:200]}" if one.detail else ""
        bars += [
            Bar(
                trial=one.trial,
                ending=one.ending,
                left=round(left, 3),
                width=round(max(place(one.end) - left, NARROWEST), 3),
                top=tops[one.worker, slot] + ROW - BAR - 4,
                text=f"trial {one.trial}: {took}, then {one.ending.replace('_', ' ')}{reason}",
            )
            for slot in one.slots or (0,)
        ]
    return Picture(
        rows=tuple((f"{worker}, slot {slot}", tops[worker, slot]) for worker, slot in rows),
        bars=tuple(bars),
        ticks=tuple((percent, wording.duration(length_s * percent / 100)) for percent in TICKS),
        endings=tuple(sorted({one.ending for one in shown})),
        left_out=len(found) - len(shown),
    )


async def gantt(request: Request, client: AsyncClient) -> Content:
    """The attempts of a study's trials on slots."""
    handle = client.study(request.path_params["study"])
    info = await handle.status()
    events = handle.events(until=info.cursor)  # only moves are kept: there may be a million others
    found = [*stays(tuple([one async for one in events if isinstance(one.detail, TrialMoved)]))]
    return Content(
        template="gantt.html",
        title=f"Slots of {info.name}",
        data={"stays": [asdict(one) for one in found]},
        more={"study": info, "picture": picture(found) if found else None},
    )
