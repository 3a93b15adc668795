"""What a study without a policy gets: ASHA, with settings that were measured. How: docs/explanation/auto.md."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from headrace.spec.halving import AshaArrival, AshaPolicy, share
from headrace.spec.rungs import GeometricPolicy
from headrace.spec.scalars import Real

EFFORT: Final = 0.2
"""Of what all trials would cost at the full budget, where nobody says how much may be spent."""


class AutoPolicy(GeometricPolicy):
    """ASHA that hedges against early ranks that mislead. `effort` is what a user may want to turn."""

    kind: Literal["auto"] = "auto"
    effort: Annotated[Real, AfterValidator(share)] = EFFORT

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
