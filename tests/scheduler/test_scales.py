"""What a pilot chooses: the smallest copy that ranks its configurations like the model."""

import pytest

from headrace.spec import Pilot
from headrace.spec.pilot import SCALE
from headrace_services.scheduler.core.scales import PilotTrial
from headrace_services.scheduler.engine.scales import NoScaleError, choose

MODEL = [float(number) for number in range(12)]
ALIKE = [10 + number / 2 for number in range(12)]
REVERSED = ALIKE[::-1]
FIVE_REVERSED = [*REVERSED[-5:], *ALIKE[5:]]
"""τ is 46/66 = 0.70, and the best is among the first five."""


def trials(**values: list[float | None]) -> list[PilotTrial]:
    return [
        PilotTrial(params={"lr": number, SCALE: int(scale[1:])}, value=value)
        for scale, found in values.items()
        for number, value in enumerate(found)
    ]


def chosen(found: list[PilotTrial], *, maximize: bool = False, **asked: object) -> int:
    pilot = Pilot.model_validate(asked)
    choice = choose(pilot, found, study="small-scale", maximize=maximize)
    assert choose(pilot, found[::-1], study="small-scale", maximize=maximize).scale == choice.scale
    return choice.scale


def test_the_smallest_that_agrees_is_taken() -> None:
    assert chosen(trials(_1=MODEL, _4=ALIKE, _16=ALIKE, _8=ALIKE)) == 16
    assert chosen(trials(_1=MODEL, _16=REVERSED, _8=FIVE_REVERSED, _4=ALIKE)) == 4
    assert chosen(trials(_1=MODEL, _16=REVERSED, _8=FIVE_REVERSED, _4=ALIKE), least_kendall=0.6) == 8
    assert chosen(trials(_1=MODEL, _16=REVERSED, _3=ALIKE), scales=[3, 16]) == 3


def test_the_direction_of_the_metric_counts() -> None:
    turned = [-value for value in MODEL]
    assert chosen(trials(_1=turned, _16=[-value for value in ALIKE]), maximize=True) == 16
    with pytest.raises(NoScaleError):
        chosen(trials(_1=MODEL, _16=ALIKE[:6], _8=REVERSED, _4=REVERSED), maximize=True)


def test_the_regret_is_bounded_by_a_tenth_of_the_way_to_the_median_unless_said() -> None:
    """The copy ranks the model's best sixth, and all others alike: only the regret of its first five shows it."""
    late = [*(value for value in ALIKE[1:6]), ALIKE[0] + 2.75, *ALIKE[6:]]
    of_model = [*MODEL[1:6], MODEL[0], *MODEL[6:]]
    found = trials(_1=of_model, _16=late, _8=REVERSED, _4=REVERSED)
    with pytest.raises(NoScaleError, match=r"scale 16: τ 0\.85, regret 1;.*regret of 0\.55 at most"):
        chosen(found)
    assert chosen(found, most_regret=1.0) == 16


def test_what_failed_ranks_last() -> None:
    half: list[float | None] = [*ALIKE[:9], None, None, None]
    assert chosen(trials(_1=[*MODEL[:9], None, None, None], _16=half)) == 16
    choice = choose(Pilot(), trials(_1=list(MODEL), _16=[None] * 12, _8=half), study="s", maximize=False)
    assert [one.agrees for one in choice.tried[:2]] == [False, True]


def test_it_says_why_it_cannot_choose_and_what_to_do() -> None:
    with pytest.raises(NoScaleError) as none:
        choose(
            Pilot(), trials(_1=list(MODEL), _16=REVERSED, _8=REVERSED), study="small-scale", maximize=False
        )
    for part in (
        "pilot 'small-scale'",
        "scale 16: τ -1.00",
        "τ of 0.8",
        "steps: ...",
        "surrogate: {scale: 4}",
    ):
        assert part in str(none.value)
    with pytest.raises(
        NoScaleError, match=r"1 of its 12 trials of the model itself have a value.*headrace trials"
    ):
        choose(Pilot(), trials(_1=[1.0, *[None] * 11], _16=ALIKE), study="small-scale", maximize=False)


def test_no_trials_at_all_are_no_choice() -> None:
    with pytest.raises(NoScaleError, match="0 of its 0 trials"):
        choose(Pilot(), [], study="small-scale", maximize=False)


@pytest.mark.parametrize(
    "model",
    [
        [-1.7e308, *[1.7e308] * 11],
        [1.7e308] * 12,
        [-1.7e308] * 12,
        [-1.7e308, 0.0, *[1.6e308] * 10],
    ],
)
def test_values_that_overflow_are_reported_and_nothing_is_chosen(model: list[float]) -> None:
    """The median of an even count, and a difference, may overflow the floats."""
    with pytest.raises(NoScaleError, match=r"lie too far apart to be compared.*name a scale"):
        choose(Pilot(), trials(_1=list(model), _16=list(ALIKE)), study="small-scale", maximize=False)


def test_a_regret_beyond_the_floats_is_more_than_any_bound() -> None:
    """The bound is given, so no median is needed. The copy's first five miss the model's best."""
    model: list[float | None] = [-1.7e308, *[1.7e308 - 1e293 * place for place in range(11)]]
    with pytest.raises(
        NoScaleError, match=r"scale 16: τ -?\d\.\d\d, its first five failed on the model or lie too far"
    ):
        choose(
            Pilot(most_regret=1e300, least_kendall=-1, scales=(16,)),
            trials(_1=model, _16=list(REVERSED)),
            study="small-scale",
            maximize=False,
        )
