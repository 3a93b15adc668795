"""A pilot finds out how small the copy of a model may be: `surrogate: {scale: auto}`.

The pilot is an ordinary study, `NAME-scale`, that runs before the gate. Its trials train the same configurations
on the model and on copies of it, each for a short time. An additional parameter gives each trial's scale. The
scheduler chooses the smallest copy that ranks the configurations as the model does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import CategoricalDomain, Domain, SpecModel
from headrace.spec.fuse import Fuse
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.resources import Resources
from headrace.spec.scalars import Real, Steps, Text, Value, integer_within
from headrace.spec.transfer import Transfer

SUFFIX: Final = "-scale"
SCALE: Final = "surrogate_scale"
"""The parameter of a pilot's trials that says how many times narrower than the model their copy is; 1 is the
model itself.
"""
FEWEST: Final = 10
"""The fewest configurations: the five best of fewer would mean nothing."""
AUTO: Final = "auto"
DEFAULT_SCALES: Final = (16, 8, 4)


def _kendall(value: float) -> float:
    if not -1 <= value <= 1:
        raise fault("must be from -1 to 1", "1 asks for the same ranking, 0.8 is usual.")
    return value


def _regret(value: float) -> float:
    if value < 0:
        raise fault("must not be negative", "It is a difference of the metric, such as 0.01.")
    return value


class Pilot(SpecModel):
    """What a pilot tries, and when a copy is good enough. `study` is filled in by the scheduler."""

    scales: tuple[Annotated[int, PlainValidator(integer_within(2, numbers.STEPS))], ...] = ()
    configurations: Annotated[int, PlainValidator(integer_within(FEWEST, numbers.PILOT))] = 12
    steps: Steps | None = None
    least_kendall: Annotated[Real, AfterValidator(_kendall)] = 0.8
    most_regret: Annotated[Real, AfterValidator(_regret)] | None = None
    study: Text = ""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        twice = [place for place, scale in enumerate(self.scales) if scale in self.scales[:place]]
        reject(
            [
                Problem(
                    loc=("scales", place),
                    value=self.scales[place],
                    message="stands twice",
                    remedy="Name it once.",
                )
                for place in twice
            ]
        )
        return self

    @property
    def candidates(self) -> tuple[int, ...]:
        """The scales to try, the smallest copy first."""
        return tuple(sorted(self.scales or DEFAULT_SCALES, reverse=True))


def pilot_name(name: str) -> str:
    """The name of the pilot for a study of this name."""
    return f"{name}{SUFFIX}"


def pilot_steps(pilot: Pilot, rungs: Sequence[int]) -> int:
    """How many steps its trials train: to the study's first rung, unless the pilot says otherwise."""
    return pilot.steps if pilot.steps is not None else rungs[0]


def pilot_fields(
    pilot: Pilot,
    tried: Sequence[Mapping[str, Value]],
    *,
    rungs: Sequence[int],
    fuse: Fuse | None,
    resources: Resources,
    transfer: Transfer | None,
) -> dict[str, Any]:
    """The fields in which a pilot differs from its study. The model's trials come first, because they take
    longest.
    """
    scales = (1, *pilot.candidates)
    room = transfer.resources if transfer is not None else resources
    shares = fuse is not None and room.slots == 1 and room.by is None
    return {
        "enqueued": tuple({**one, SCALE: scale} for scale in scales for one in tried),
        "max_trials": len(scales) * len(tried),
        "max_steps": pilot_steps(pilot, rungs),
        "policy": {"kind": "run_all"},
        "resources": room.model_dump(),
        "fuse": {**fuse.model_dump(), "apart": (*fuse.apart, SCALE)} if fuse is not None and shares else None,
    }


def pilot_space(pilot: Pilot, space: Mapping[str, Domain]) -> dict[str, Domain]:
    """The study's space, and the scale."""
    return {**space, SCALE: CategoricalDomain(type="categorical", values=(1, *pilot.candidates))}


def pilot_problems(pilot: Pilot, known: Mapping[str, Any], declared: Sequence[str]) -> Iterator[Problem]:
    """Conflicts between a pilot and the study's other valid fields."""
    loc = ("surrogate", "pilot")
    if known.get("gate") is not None and known["gate"].off:
        yield Problem(
            loc=("gate",),
            value=False,
            message="leaves the scale that the pilot chooses unchecked",
            remedy="Leave gate out, or say how small the copy is: surrogate: {scale: 8}.",
        )
    if known.get("further_objectives"):
        yield Problem(
            loc=("surrogate", "scale"),
            value=AUTO,
            message="compares rankings, and with several objectives there is none",
            remedy="Say how small the copy is, such as scale: 8, or keep one objective.",
        )
    if SCALE in declared:
        yield Problem(
            loc=("space", SCALE),
            message="is the name of the pilot's own parameter",
            remedy="Give the parameter another name.",
        )
    policy, full = known.get("policy"), known.get("max_steps")
    if full is None or policy is None:
        return
    if pilot.steps is not None and pilot.steps > full:
        yield Problem(
            loc=(*loc, "steps"),
            value=pilot.steps,
            message=f"is above the full budget, {full} steps",
            remedy="A pilot is to be short: take a tenth of the budget, or the first rung.",
        )
    if pilot.steps is None and policy.ladder(full)[0] >= full:
        yield Problem(
            loc=(*loc, "steps"),
            message="is required, for the policy has no rung before the full budget",
            remedy="Say how far the pilot trains, such as pilot: {steps: 3}.",
        )
