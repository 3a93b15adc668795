"""The default policy of a study: ASHA, with measured settings. How it works: docs/explanation/auto.md.

Optimistic arrival hedges against early ranks that mislead: the first trials of a rung run far without a
comparison. A sampler that learns from results has nothing to learn from until then, and the hedge costs it
several full runs. So with such a sampler, trials wait to be compared, and effort is the only hedge. (Decision
0120.)

A model over all rungs gains from an early second comparison, and loses from a last rung close to the full
budget. So with such a model, rungs are counted down from the full budget. (Decision 0122.)
"""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from headrace.spec.halving import AshaArrival, AshaFromTheTop, AshaPolicy, share
from headrace.spec.rungs import GeometricPolicy
from headrace.spec.sampler import ModelBased, MultiFidelitySampler, Sampler
from headrace.spec.scalars import Real

EFFORT: Final = 0.2
"""The default fraction to spend of what all trials would cost at the full budget."""


class AutoPolicy(GeometricPolicy):
    """ASHA that hedges against early ranks that mislead. `effort` is the setting that a user may want to change."""

    kind: Literal["auto"] = "auto"
    effort: Annotated[Real, AfterValidator(share)] = EFFORT

    def asha(self, sampler: Sampler) -> AshaPolicy:
        """The policy to use with a sampler. All differences from a plain `asha` are decided here."""
        rungs_from = AshaFromTheTop if isinstance(sampler, MultiFidelitySampler) else AshaPolicy
        return rungs_from(
            eta=self.eta,
            min_steps=self.min_steps,
            rungs=self.rungs,
            price_pauses=self.price_pauses,
            arrival=AshaArrival.CAUTIOUS if isinstance(sampler, ModelBased) else AshaArrival.OPTIMISTIC,
            effort=self.effort,
        )
