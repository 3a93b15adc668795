"""The scale of a study's copies, as its pilot has chosen it (`engine.scales`)."""

from collections.abc import Mapping

from msgspec import Struct

from headrace.spec.scalars import Value


class PilotTrial(Struct, frozen=True, kw_only=True):
    """A configuration with its scale and its value; None if it failed or has none."""

    params: Mapping[str, Value]
    value: float | None


class ScaleTried(Struct, frozen=True, kw_only=True):
    """How well the copy of a scale ranks the pilot's configurations."""

    scale: int
    kendall: float
    regret: float | None
    agrees: bool

    def __str__(self) -> str:
        unknown = "its first five failed on the model or lie too far from its best"
        lost = unknown if self.regret is None else f"regret {self.regret:.4g}"
        return f"scale {self.scale}: τ {self.kendall:.2f}, {lost}"


class ScaleChoice(Struct, frozen=True, kw_only=True):
    """The scale that a pilot has chosen, and why."""

    scale: int
    study: str
    """The pilot's name."""
    least_kendall: float
    most_regret: float
    tried: tuple[ScaleTried, ...]
    """The smallest copy first."""

    def __str__(self) -> str:
        (chosen,) = (one for one in self.tried if one.scale == self.scale)
        return (
            f"{chosen}, the smallest copy that ranks the configurations of '{self.study}' as the model does"
        )
