"""Transfer: what carries over, the top k with its regret, eager starts, and the automatic scale."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headrace_torch import hydro
from headrace_torch.agreement import kendall_tau_b
from headrace_torch.hydro.transfer import Trial, Verdict, agreement
from headrace_torch.hydro.transfer.which import check_transferable, search_space, varied
from headrace_torch.what_transfers import VERDICTS, WHY

pytestmark = pytest.mark.filterwarnings("ignore::headrace_torch.hydro.UngatedWarning")  # see test_hydro_gate
SCORES = st.one_of(st.none(), st.floats(-100, 100).map(lambda one: round(one, 1)))


def trials(*scores: float | None) -> list[Trial]:
    return [Trial(hyperparameters={"lr": 10.0**-number}, score=score) for number, score in enumerate(scores)]


def test_what_transfers_is_told_apart_before_anything_is_spent() -> None:
    space = search_space(
        ["lr", "Batch-Size", "momentum", "dropout", "weight_decay", "max_grad_norm", "temperature"]
    )
    assert space.transferable == ("lr", "Batch-Size", "momentum")
    assert space.rest == {
        "dropout": Verdict.REGULARIZES,
        "weight_decay": Verdict.REGULARIZES,
        "max_grad_norm": Verdict.SCALES,
        "temperature": Verdict.UNKNOWN,
    }
    assert "tune on the target: dropout" in str(space)
    assert set(VERDICTS.values()) | {Verdict.UNKNOWN} == set(WHY)


@pytest.mark.parametrize("name", ["dropout", "weight_decay", "temperature"])
def test_what_does_not_transfer_is_refused_by_name(name: str) -> None:
    members = [{"lr": 0.1, name: 0.0}, {"lr": 0.2, name: 0.5}]
    trained: list[Any] = []
    with pytest.raises(hydro.TransferError, match=rf"{name} does not transfer: .* accept=\['{name}'\]"):
        hydro.transfer(
            [Trial(hyperparameters=one, score=1.0) for one in members], lambda one: trained.append(one)
        )
    assert trained == []
    assert check_transferable(members, accept=[name]).transferable == ("lr",)
    fixed = [{**one, name: 0.1} for one in members]
    assert check_transferable(fixed).rest == {}
    with pytest.raises(hydro.TransferError, match="not the string"):
        check_transferable(members, accept=name)


def test_only_what_varies_counts() -> None:
    assert varied([{"lr": 1, "betas": (0.9, 0.99)}, {"lr": 1, "betas": (0.8, 0.99)}, {"lr": 1}]) == ("betas",)
    assert varied([{"lr": 1}]) == ()


def test_hydros_published_case_the_second_recovers_what_the_first_loses() -> None:
    """The surrogate's best is far from the target's best, and its second best is near."""
    on_target = {1.0: 92.0, 0.1: 94.9, 0.01: 95.0, 0.001: 80.0}
    found = hydro.transfer(
        trials(95.1, 95.0, 94.0, 70.0), lambda one: on_target[float(one["lr"])], maximize=True
    )  # type: ignore[arg-type]
    assert [one.place for one in found.validated] == [1, 2]
    assert found.best.hyperparameters == {"lr": 0.1}
    assert found.gained == pytest.approx(2.9)
    assert found.regret is None
    direct = hydro.transfer(
        trials(95.1, 95.0, 94.0, 70.0),
        lambda one: on_target[float(one["lr"])],
        maximize=True,
        direct=[95.0, None],  # type: ignore[arg-type]
    )
    assert direct.regret == pytest.approx(0.1)
    assert "2. on the surrogate (95): 94.9 on the target  best" in str(direct)


def test_a_trial_that_fails_on_the_target_is_not_the_best() -> None:
    found = hydro.transfer(trials(1.0, 2.0, 3.0), lambda one: None if one["lr"] == 1.0 else 5.0, k=2)
    assert (found.best.place, found.gained) == (2, None)
    with pytest.raises(hydro.TransferError, match="all 2 trials failed on the target"):
        hydro.transfer(trials(1.0, 2.0, 3.0), lambda _one: None)
    with pytest.raises(hydro.TransferError, match="no trial of the search has a score"):
        hydro.transfer(trials(None, math.nan), lambda _one: 1.0)


def test_one_is_not_enough() -> None:
    with pytest.raises(hydro.TransferError, match="k must be at least 2, not 1"):
        hydro.TopK(k=1)


def test_an_idle_device_starts_the_leader_and_the_final_top_k_is_validated_anyway() -> None:
    decisions = hydro.TopK(k=2, eager_after=3)
    scores = [5.0, 4.0, 6.0, 1.0, 2.0]
    every = trials(*scores)
    for number in (0, 1):
        decisions.report(number, every[number])
        assert decisions.start(idle=1) == []  # too early to tell
    decisions.report(2, every[2])
    assert decisions.start(idle=0) == []
    assert decisions.start(idle=1) == [1]
    decisions.validated(1, 3.5)
    for number in (3, 4):
        decisions.report(number, every[number])
    assert decisions.start(idle=4) == [3]  # two in all before the search ends
    assert decisions.start(idle=4) == []
    decisions.finish()
    assert not decisions.done
    with pytest.raises(hydro.TransferError, match="not done"):
        decisions.outcome()
    assert decisions.start(idle=4) == [4]
    decisions.validated(3, 9.0)
    decisions.validated(4, 0.5)
    assert decisions.done
    outcome = decisions.outcome()
    assert [(one.place, one.target_score) for one in outcome.validated] == [(1, 9.0), (2, 0.5), (3, 3.5)]
    assert outcome.best.place == 2
    assert outcome.gained == 8.5


def test_every_report_may_come_twice_and_none_may_change() -> None:
    decisions = hydro.TopK(k=2)
    one, two = trials(1.0, 2.0)
    for _ in range(2):
        decisions.report(0, one)
        decisions.report(1, two)
    with pytest.raises(hydro.TransferError, match="trial 0 cannot report: it has another result already"):
        decisions.report(0, two)
    with pytest.raises(hydro.TransferError, match="trial 1 was not started"):
        decisions.validated(1, 1.0)
    decisions.finish()
    with pytest.raises(hydro.TransferError, match="the search is finished"):
        decisions.report(2, one)
    assert decisions.start(idle=9) == [0, 1]
    for _ in range(2):
        decisions.validated(0, 3.0)
    with pytest.raises(hydro.TransferError, match=r"another result on the target: 3.0, not 4.0"):
        decisions.validated(0, 4.0)


@given(
    st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=12),
    st.integers(2, 5),
    st.booleans(),
    st.integers(1, 12),
)
def test_the_top_k_is_always_validated(
    pairs: list[tuple[float | None, float | None]], k: int, maximize: bool, idle: int
) -> None:
    """Whatever the order and however many devices idle: each is started once, and the final top k has results."""
    decisions = hydro.TopK(k=k, maximize=maximize, eager_after=2)
    started: list[int] = []
    for number, (score, _) in enumerate(pairs):
        decisions.report(number, Trial(hyperparameters={"lr": number}, score=score))
        started += decisions.start(idle=idle)
    if all(score is None for score, _ in pairs):
        with pytest.raises(hydro.TransferError):
            decisions.finish()
        return
    decisions.finish()
    while new := decisions.start(idle=idle):
        started += new
    for number in started:
        decisions.validated(number, pairs[number][1])
    assert decisions.done
    assert len(started) == len(set(started)) <= 2 * k
    sign = -1 if maximize else 1
    with_score = sorted(
        (sign * score, number) for number, (score, _) in enumerate(pairs) if score is not None
    )
    assert {number for _, number in with_score[:k]} <= set(started)
    if any(pairs[number][1] is not None for number in started):
        best = decisions.outcome().best
        reached = [sign * value for number in started if (value := pairs[number][1]) is not None]
        assert best.target_score is not None
        assert sign * best.target_score == min(reached)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=15))
def test_kendalls_tau_is_scipys(pairs: list[tuple[int, int]]) -> None:
    xs, ys = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    wanted = stats.kendalltau(xs, ys).statistic if len(set(xs)) > 1 and len(set(ys)) > 1 else 0.0
    assert kendall_tau_b(xs, ys) == pytest.approx(wanted)


def test_regret_by_k() -> None:
    found = agreement([3.0, 1.0, 2.0, None], [0.1, 0.5, 0.2, 0.3], ks=(1, 2, 3))
    assert found.regret == pytest.approx({1: 0.4, 2: 0.1, 3: 0.0})
    assert found.first_at == 4
    assert agreement([1.0, 2.0], [None, 5.0]).regret[1] is None
    with pytest.raises(hydro.TransferError, match="no trial has a score on the target"):
        agreement([1.0, 2.0], [None, None])
    with pytest.raises(hydro.TransferError, match="2 on the surrogate and 3 on the target"):
        agreement([1.0, 2.0], [1.0, 2.0, 3.0])


def noisy(scale: int, members: Sequence[Any]) -> list[float | None]:
    """Accuracy with its peak at lr = 1e-3, which smaller surrogates distort more."""
    return [
        90
        - 4 * (math.log10(one["lr"]) + 3) ** 2
        + (3.0 * math.sin(40 * math.log10(one["lr"])) if scale > 4 else 0.0)
        for one in members
    ]


def test_the_smallest_surrogate_that_agrees_is_chosen() -> None:
    pilot = [{"lr": 10 ** (-4.5 + 0.25 * number)} for number in range(12)]
    asked: list[int] = []

    def evaluate(scale: int, members: Sequence[Any]) -> list[float | None]:
        asked.append(scale)
        return noisy(scale, members)

    found = hydro.choose_scale(pilot, evaluate, scales=(2, 4, 8, 16))
    assert asked == [1, 16, 8, 4]  # the target once, then the smallest first, and no more than necessary
    assert found.raise_if_none() == 4
    assert [one.agrees for one in found.tried] == [False, False, True]
    assert found.tried[-1].agreement.kendall == pytest.approx(1.0)


def test_no_scale_that_agrees_is_an_error_that_names_the_best() -> None:
    pilot = [{"lr": 10 ** (-4.5 + 0.25 * number)} for number in range(12)]
    found = hydro.choose_scale(pilot, lambda scale, one: noisy(8 if scale > 1 else 1, one), scales=(4, 2))
    assert found.scale is None
    with pytest.raises(hydro.TransferError, match=r"the best is scale \d with Kendall's τ"):
        found.raise_if_none()
    regretful = hydro.choose_scale(
        pilot, lambda scale, one: noisy(1, one)[:: 1 if scale == 1 else -1], scales=(2,), least_kendall=-1.0
    )
    assert regretful.scale == 2 or regretful.tried[0].agreement.regret[5] > 0.5  # type: ignore[operator]


def test_a_pilot_that_says_nothing_is_refused() -> None:
    with pytest.raises(hydro.TransferError, match="at least 10 configurations, not 3"):
        hydro.choose_scale([{"lr": 1.0}] * 3, noisy)
    with pytest.raises(hydro.TransferError, match="scales must be integers of at least 2"):
        hydro.choose_scale([{"lr": 1.0}] * 10, noisy, scales=(1, 2))
    with pytest.raises(hydro.TransferError, match="dropout does not transfer"):
        hydro.choose_scale([{"lr": 0.1, "dropout": 0.1 * number} for number in range(10)], noisy)
