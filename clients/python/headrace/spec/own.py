"""A user's own policies and samplers, as a study names them.

They are in an installed package, which names them as entry points. Here only their name and options, which are
plain values, are known. The scheduler finds out whether the package is installed and accepts the options
(`core.plugins`).
"""

from typing import Literal

from pydantic import Field

from headrace.spec.domains import SpecModel
from headrace.spec.names import PluginName
from headrace.spec.rungs import EvenPolicy
from headrace.spec.scalars import Text, Value


class OwnPolicy(EvenPolicy):
    """A policy in an installed package. The study defines its rungs, so that all parts of Headrace know them."""

    kind: Literal["own"] = "own"
    name: PluginName
    options: dict[Text, Value] = Field(default_factory=dict)

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait and continue later. This is not known, so it may."""
        return True


class OwnSampler(SpecModel):
    """A sampler in an installed package."""

    kind: Literal["own"] = "own"
    name: PluginName
    options: dict[Text, Value] = Field(default_factory=dict)
