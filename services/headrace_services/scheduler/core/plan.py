"""What a decision comes to: what to write, what to answer, whom to tell."""

from collections.abc import Mapping

from msgspec import Struct

from headrace.errors import HeadraceError
from headrace_services.scheduler.core.changes import Changes
from headrace_services.scheduler.core.inputs import Order, Outcome
from headrace_services.scheduler.core.records import Study, TrialView


class Effects(Struct, frozen=True, kw_only=True):
    """What a committed plan leaves to do."""

    orders: tuple[Order, ...] = ()
    """What workers are told."""
    slots_left: bool = False
    """Whether slots are left that found no trial here and may serve another study."""
    again: bool = False
    """Whether there was more to place than one cycle places."""
    looked: bool = False
    """Whether the cycle looked for something to place. One that only learns of free slots to judge reports does not."""
    look_again: bool = False
    """Whether a trial waits, and free slots were passed over: nobody else tells the study when they stay free."""
    rests_s: float | None = None
    """How long until a trial may be placed that is not to be placed yet."""
    wake: tuple[int, ...] = ()
    """Other studies that free slots were left to."""
    proposals_wanted: int = 0
    """How many further proposals the pool is to compute."""


class Plan(Struct, frozen=True, kw_only=True):
    """The whole outcome of a cycle."""

    before: Study
    """The study's row as it was read: the writes are guarded by it."""
    study: Study
    changes: Changes
    outcomes: tuple[Outcome | HeadraceError, ...]
    """What became of the inputs, in their order."""
    shown: Mapping[int, TrialView]
    """The trials that answers may show, as the plan leaves them."""
    effects: Effects
