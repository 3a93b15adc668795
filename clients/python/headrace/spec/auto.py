"""What a study without a policy gets: ASHA, with settings that were measured. How: docs/explanation/auto.md."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from headrace.spec.halving import AshaArrival, AshaPolicy, share
from headrace.spec.rungs import GeometricPolicy, geometric
from headrace.spec.scalars import Real

EFFORT: Final = 0.2
"""Of what all trials would cost at the full budget, where nobody says how much may be spent."""


SPACING: Final = 2
"""Each rung is so many times the one before, whatever η is."""


class AutoPolicy(GeometricPolicy):
    """ASHA that hedges against early ranks that mislead. `effort` is what a user may want to turn."""

    kind: Literal["auto"] = "auto"
    effort: Annotated[Real, AfterValidator(share)] = EFFORT

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones, the last of which is max_steps: each is twice the one before where nothing is said."""
        return self.rungs or geometric(self.min_steps or 1, SPACING, max_steps)

    def beyond(self, before: int, max_steps: int, *, first: int) -> tuple[int, ...]:
        """The milestones behind a full budget that was extended: each twice the one before, and max_steps."""
        del first
        return geometric(before, SPACING, max_steps)[1:]

    @property
    def asha(self) -> AshaPolicy:
        """The policy that it is. All that differs from a plain `asha` is decided here."""
        return AshaPolicy(
            eta=self.eta,
            min_steps=self.min_steps,
            rungs=self.rungs,
            price_pauses=self.price_pauses,
            arrival=AshaArrival.OPTIMISTIC,
            effort=self.effort,
        )
