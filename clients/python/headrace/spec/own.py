"""Policies and samplers of a user's own, as a study names them.

They live in an installed package, which names them as entry points. Here only their name is known, and options that are
plain values: whether the package is there, and what it makes of the options, the scheduler finds out (`core.plugins`).
"""

from typing import Literal

from pydantic import Field

from headrace.spec.domains import SpecModel
from headrace.spec.names import PluginName
from headrace.spec.rungs import EvenPolicy
from headrace.spec.scalars import Text, Value


class OwnPolicy(EvenPolicy):
    """A policy of an installed package. Its rungs are the study's to say, so that everybody knows them."""

    kind: Literal["own"] = "own"
    name: PluginName
    options: dict[Text, Value] = Field(default_factory=dict)

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait, and go on later: nobody knows, so it may."""
        return True


class OwnSampler(SpecModel):
    """A sampler of an installed package."""

    kind: Literal["own"] = "own"
    name: PluginName
    options: dict[Text, Value] = Field(default_factory=dict)
