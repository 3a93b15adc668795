"""What a study without a policy gets: ASHA, with settings that were measured. How: docs/explanation/auto.md.

Optimistic arrival hedges against early ranks that mislead: the first trials of a rung run far without a comparison. A
sampler that learns from results has nothing to propose by until then, and the hedge costs it several full runs. So with
such a sampler trials wait to be compared. Effort is the hedge that is left. (Decision 0120.)

A model over all rungs gains by an early second look, and loses by a last rung close to the full budget. So with it
rungs are counted from the top. (Decision 0122.)
"""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from headrace.spec.halving import AshaArrival, AshaFromTheTop, AshaPolicy, share
from headrace.spec.rungs import GeometricPolicy
from headrace.spec.sampler import ModelBased, MultiFidelitySampler, Sampler
from headrace.spec.scalars import Real

EFFORT: Final = 0.2
"""Of what all trials would cost at the full budget, where nobody says how much may be spent."""


class AutoPolicy(GeometricPolicy):
    """ASHA that hedges against early ranks that mislead. `effort` is what a user may want to turn."""

    kind: Literal["auto"] = "auto"
    effort: Annotated[Real, AfterValidator(share)] = EFFORT

    def asha(self, sampler: Sampler) -> AshaPolicy:
        """The policy that it is with a sampler. All that differs from a plain `asha` is decided here."""
        rungs_from = AshaFromTheTop if isinstance(sampler, MultiFidelitySampler) else AshaPolicy
        return rungs_from(
            eta=self.eta,
            min_steps=self.min_steps,
            rungs=self.rungs,
            price_pauses=self.price_pauses,
            arrival=AshaArrival.CAUTIOUS if isinstance(sampler, ModelBased) else AshaArrival.OPTIMISTIC,
            effort=self.effort,
        )
