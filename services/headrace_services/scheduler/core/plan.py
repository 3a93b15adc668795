"""The result of a decision: what to write, what to answer, whom to notify."""

from collections.abc import Mapping

from msgspec import Struct

from headrace.errors import HeadraceError
from headrace_services.scheduler.core.changes import Changes
from headrace_services.scheduler.core.inputs import Order, Outcome
from headrace_services.scheduler.core.records import Study, TrialView


class Effects(Struct, frozen=True, kw_only=True):
    """The remaining work of a committed plan."""

    orders: tuple[Order, ...] = ()
    """The messages for workers."""
    slots_left: bool = False
    """Whether slots are left that found no trial here and may serve another study."""
    again: bool = False
    """Whether there is more to place than one cycle places."""
    looked: bool = False
    """Whether the cycle looked for something to place. A cycle that only reads free slots to judge reports does
    not."""
    look_again: bool = False
    """Whether a trial waits and free slots were passed over: nothing else wakes the study if they stay free."""
    rests_s: float | None = None
    """How long until a trial may be placed that may not be placed yet."""
    wake: tuple[int, ...] = ()
    """Other studies that free slots were left to."""
    proposals_wanted: int = 0
    """How many further proposals the pool is to compute."""


class Plan(Struct, frozen=True, kw_only=True):
    """The whole outcome of a cycle."""

    before: Study
    """The study's row as it was read, which guards the writes."""
    study: Study
    changes: Changes
    outcomes: tuple[Outcome | HeadraceError, ...]
    """The outcomes of the inputs, in their order."""
    shown: Mapping[int, TrialView]
    """The trials that answers may show, as the plan leaves them."""
    effects: Effects
