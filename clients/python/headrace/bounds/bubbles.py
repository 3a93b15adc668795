"""Bounds of calls to the bubble agent (bubble.proto)."""

from typing import Final

from headrace.bounds import numbers as n
from headrace.bounds.kinds import Bound, Real, Whole
from headrace.bounds.specs import NAME

_PLACE: Final = Whole(0, 65_535)

BUBBLES: Final[dict[str, dict[str, Bound]]] = {
    "ListBubbleJobsRequest": {"job": NAME},
    "GetBubbleTimelineRequest": {"job": NAME, "seconds": Real(0.0, 60.0)},
    "ShareProgressRequest": {
        "agent": NAME,
        "job": NAME,
        "replica": _PLACE,
        "stage": _PLACE,
        "stages": _PLACE,
        "micro_batches": Whole(0, 10**9),
        "step": Whole(0, n.EXACT),
        "forwards": Whole(0, 10**9),
        "backwards": Whole(0, 10**9),
        "level": Whole(0, 64),
        "control_share": Real(0.0, 1.0),
    },
}
