"""The events of a study, newest first, a page at a time.

The scheduler sends events in the order of their cursors, from a cursor on. A page is therefore read from a window of
cursors below its end. Where events were deleted by age, the window holds fewer than a page; then the next window,
below it, is twice as wide.
"""

from collections import deque
from typing import Final

from starlette.requests import Request

from headrace.cli import views
from headrace.cli.live import event_text
from headrace.client import AsyncClient
from headrace.client.aio import AsyncStudy
from headrace.client.events import Event
from headrace_services.console.rendering import Content

PAGE_SIZE: Final = 50
LONGEST_CURSOR: Final = 19
"""The digits of the largest cursor."""


async def events(request: Request, client: AsyncClient) -> Content:
    """The newest events, or those before the cursor `page`."""
    handle = client.study(request.path_params["study"])
    info = await handle.status()
    asked, wrong, end = request.query_params.get("page", ""), "", info.cursor + 1
    if asked.isascii() and asked.isdigit() and len(asked) <= LONGEST_CURSOR:
        end = min(int(asked), end)
    elif asked:
        wrong, end = "There is no such page of events: a page is named by the cursor of an event.", 0
    found = await before(handle, end, PAGE_SIZE + 1)
    shown = found[:PAGE_SIZE]
    return Content(
        template="events.html",
        title=f"Events of {info.name}",
        data={
            "events": [views.event(one) for one in shown],
            "next_page": str(shown[-1].cursor) if len(found) > len(shown) else "",
            "error": wrong,
        },
        more={"study": info, "lines": [(one, *line(one)) for one in shown], "is_newest": not asked},
        status=400 if wrong else 200,
    )


async def before(study: AsyncStudy, end: int, most: int) -> list[Event]:
    """The last events with a cursor below `end`, newest first; at most `most`."""
    found: list[Event] = []
    width = most
    while end > 1 and len(found) < most:
        start = max(1, end - width)
        window: deque[Event] = deque(maxlen=most - len(found))
        async for event in study.events(start - 1, until=end - 1):
            window.append(event)
        found += reversed(window)
        end, width = start, 2 * width
    return found


def line(event: Event) -> tuple[str, str]:
    """An event in one line, as `headrace events` prints it: the words that name its trial, and the rest."""
    text = event_text(event)
    if event.trial is None:
        return "", text
    name = f"trial {event.trial}"
    rest = text[len(name) :]
    if text.lower().startswith(name) and not rest[:1].isdigit():
        return text[: len(name)], rest
    return name, f": {text}"
