"""The pure parts: rules, transforms, designs, records and plots, without any process."""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_torch.hdet import (
    HyperparameterRecord,
    LogSpaceRule,
    PaperRule,
    SyncReport,
    draw_trajectory,
    read_records,
)
from headrace_torch.hdet.designs import DESIGNS, assign, block_length, correlation
from headrace_torch.hdet.records import JsonLines
from headrace_torch.hdet.rules import (
    Evidence,
    FactorRule,
    chance,
    decay_rate,
    multipliers,
    positions,
    scores,
    signal,
    softmax,
    spread_of,
)
from headrace_torch.hdet.stall import Pulse, Seen, stalled
from headrace_torch.hdet.transforms import Space

LOSSES = st.lists(
    st.one_of(st.none(), st.just(math.nan), st.just(math.inf), st.floats(-1e6, 1e6)), min_size=2, max_size=9
)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_multipliers_are_symmetric_with_mean_one(n: int) -> None:
    assert sum(multipliers(n, 0.25)) / n == pytest.approx(1)
    assert multipliers(n, 0.0) == (1.0,) * n
    if n > 1:
        assert (positions(n)[0], positions(n)[-1]) == (-1, 1)
    assert multipliers(8, 1 / 9)[0] * 0.0009 == pytest.approx(0.0008)  # the paper's set-up


@given(LOSSES)
def test_weights_add_to_one_and_only_finite_losses_have_any(losses: list[float | None]) -> None:
    for weights in (LogSpaceRule().weights(losses), PaperRule().weights(losses)):
        finite = [loss is not None and math.isfinite(loss) for loss in losses]
        assert sum(weights) == pytest.approx(1 if any(finite) else 0)
        assert all(weight == 0 for weight, good in zip(weights, finite, strict=True) if not good)


@given(LOSSES, st.floats(-3, 3), st.floats(-1, 1))
def test_no_sync_moves_further_than_the_cap_nor_past_a_bound(
    losses: list[float | None], center: float, velocity: float
) -> None:
    rule = LogSpaceRule()
    moved = rule.move(
        center=center, velocity=velocity, places=positions(len(losses)), losses=losses, low=-3, high=3
    )
    assert abs(moved.center - center) <= rule.cap + 1e-12
    assert -3 <= moved.center <= 3


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_the_signal_is_free_of_the_loss_s_unit(losses: list[float], scale: float, offset: float) -> None:
    if 0 < spread_of(losses) < 1e-6 * (abs(offset) + 1e3):
        return  # lost in rounding
    changed = [scale * loss + offset for loss in losses]
    assert LogSpaceRule().weights(changed) == pytest.approx(LogSpaceRule().weights(losses), abs=1e-4)


def test_a_diverged_replica_pushes_the_centre_away_and_a_silent_one_does_not() -> None:
    def move(losses: list[float | None]) -> float:
        return (
            LogSpaceRule()
            .move(center=0, velocity=0, places=positions(4), losses=losses, low=-9, high=9)
            .center
        )

    assert move([2.0, 2.0, 2.0, math.nan]) < 0 < move([math.nan, 2.0, 2.0, 2.0])
    assert move([2.0, 2.0, 2.0, None]) == pytest.approx(0)
    assert move([math.nan] * 4) == move([None] * 4) == move([1.0, None, None, None]) == 0


def test_the_decay_leads_to_the_floor() -> None:
    gamma = decay_rate(1e-3, 1e-3 / 25 / 1e4, 60)
    assert gamma == pytest.approx(1 - (25 * 1e4) ** (-1 / 60))
    assert 1e-3 * (1 - gamma) ** 60 == pytest.approx(1e-3 / 25 / 1e4)
    assert decay_rate(1e-3, 1e-9, 0) == 0


def test_scores_and_softmax_are_the_paper_s() -> None:
    assert scores([1.0, 3.0], 0.5) == (2.0, -2.0)
    assert softmax([2.0, -2.0]) == pytest.approx((1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4))))
    assert softmax([1e9, 0.0]) == (1.0, 0.0)  # no overflow


@pytest.mark.parametrize("design", DESIGNS)
@given(n=st.integers(1, 9), count=st.integers(1, 5), sync=st.integers(0, 40), seed=st.integers(0, 99))
def test_every_design_is_a_permutation_for_each_name(
    design: str, n: int, count: int, sync: int, seed: int
) -> None:
    names = [f"h{k}" for k in range(count)]
    orders = assign(design, seed=seed, sync=sync, names=names, n=n)  # type: ignore[arg-type]  # parametrised
    assert [sorted(order) for order in orders] == [list(range(n))] * count
    assert orders == assign(design, seed=seed, sync=sync, names=names, n=n)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_an_orthogonal_design_is_uncorrelated_and_unbiased_over_a_block(n: int, count: int) -> None:
    names = [f"h{k}" for k in range(count)]
    length = block_length(count)
    for block in range(5):
        syncs = range(block * length, (block + 1) * length)
        designs = [assign("orthogonal", seed=1, sync=sync, names=names, n=n) for sync in syncs]
        for a, b in itertools.combinations(range(count), 2):
            assert sum(correlation(d[a], d[b]) for d in designs) == pytest.approx(0, abs=1e-12)
        for k, rank in itertools.product(range(count), range(n)):
            assert sum(positions(n)[d[k][rank]] for d in designs) == pytest.approx(0, abs=1e-12)


def test_the_orthogonal_design_is_what_random_permutations_are_not() -> None:
    """Two names at N=4.

    The paper's permutations correlate with a standard deviation of 0.58 at a sync, ours not at all.
    """

    def deviation(design: str) -> float:
        found = [
            correlation(*assign(design, seed=3, sync=sync, names=["a", "b"], n=4))  # type: ignore[arg-type]
            for sync in range(400)
        ]
        return math.sqrt(sum(one**2 for one in found) / len(found))

    assert deviation("permutation") == pytest.approx(0.577, abs=0.05)
    assert deviation("orthogonal") < 0.05


@given(
    st.sampled_from(["log", "logit", "identity"]), st.floats(0.02, 0.98), st.floats(0, 0.99), st.floats(-1, 1)
)
def test_a_space_maps_there_and_back_and_stays_inside(
    transform: str, value: float, spread: float, position: float
) -> None:
    space = Space(transform=transform, low=0.01, high=0.99, spread=spread)  # type: ignore[arg-type]
    center = space.to_center(value)
    assert space.value(center) == pytest.approx(value, rel=1e-9)
    assert 0.01 <= space.value(center, position) <= 0.99
    if position > 0:
        assert space.value(center, position) >= value - 1e-12


def report(sync: int, **changes: object) -> SyncReport:
    record = HyperparameterRecord(
        name="lr/0",
        center=0.1 * 1.5**sync,
        values=(0.09 * 1.5**sync, 0.11 * 1.5**sync),
        explored=(0.1, 0.2),
        velocity=0.5,
        signal=1.0,
    )
    return SyncReport(
        **{
            "sync": sync,
            "step": 10 * sync,
            "scored_by": "loss",
            "losses": (1.0, None),
            "scores": (0.0, None),
            "weights": (1.0, 0.0),
            "hyperparameters": (record,),
            "left_out": (),
            "updated": True,
            "bytes_averaged": 8,
            "seconds": 0.5,
            **changes,
        }
    )  # type: ignore[arg-type]  # keywords in a dict


def test_records_go_through_a_file_and_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    write = JsonLines(path)
    for sync in (1, 2, 3, 2):
        write(report(sync, seconds=float(sync), losses=(1.0, math.nan)))
    path.write_text(path.read_text(encoding="utf-8") + '{"sync": 4, "cut', encoding="utf-8")
    records = read_records(path)
    assert [one.sync for one in records] == [1, 2, 3]
    assert math.isnan(records[0].losses[1] or 0.0)
    assert records[0].hyperparameter("lr/0").values == report(1).hyperparameter("lr/0").values
    with pytest.raises(KeyError):
        records[0].hyperparameter("lr/1")
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["diverged"] == [1]


def test_a_trajectory_is_drawn_with_its_fan(tmp_path: Path) -> None:
    path = tmp_path / "fan.svg"
    drawing = draw_trajectory([report(sync) for sync in range(1, 12)], path, title="a < b")
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    assert drawing == path.read_text(encoding="utf-8")
    kinds = [element.tag.rpartition("}")[2] for element in root]
    assert kinds.count("polygon") == kinds.count("polyline") == 1
    assert "a < b" in [element.text for element in root]
    with pytest.raises(ValueError, match="no sync point"):
        draw_trajectory([])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_variance_by_chance_is_that_over_all_permutations(n: int) -> None:
    losses = [1.3, 0.2, 0.9, 0.4][:n]
    weights = softmax(scores(losses, 0.5))
    signals = [signal(weights, order, losses) for order in itertools.permutations(positions(n))]
    assert sum(signals) == pytest.approx(0, abs=1e-12)
    assert chance(weights, positions(n), losses) == pytest.approx(
        sum(one**2 for one in signals) / len(signals)
    )
    assert chance(weights, positions(n), [1.0] + [None] * (n - 1)) == 0


def test_a_factor_moves_by_evidence_and_not_by_noise() -> None:
    rule, draws = FactorRule(), random.Random(3)
    places = list(positions(4))
    noise, still, told, falling = 1.0, 0, 1.0, 1.0
    by_noise, by_signal, in_fall = Evidence(), Evidence(), Evidence()
    for _ in range(400):
        draws.shuffle(places)
        before = noise
        moved = rule.move(
            factor=noise,
            evidence=by_noise,
            places=places,
            losses=[draws.random() for _ in range(4)],
            held=False,
        )
        noise, by_noise, still = moved.center, moved.evidence, still + (moved.center == before)
    losses = [1 + place for place in places]  # the lowest rate is best
    for _ in range(40):
        moved = rule.move(factor=told, evidence=by_signal, places=places, losses=losses, held=False)
        told, by_signal = moved.center, moved.evidence
        moved = rule.move(factor=falling, evidence=in_fall, places=places, losses=losses, held=True)
        falling, in_fall = moved.center, moved.evidence
    assert still > 340
    assert 0.8 < noise < 1.25
    assert told < 0.05
    assert falling == 1.0


def test_ranks_are_stalled_only_if_each_waits_for_something_that_does_not_come() -> None:
    def seen(step: int, place: str = "a.py:1 in f", still_s: float = 90, **more: Any) -> Seen:
        more = {"state": "trains", "blocked": True} | more
        silent_s = more.pop("silent_s", 0.0)
        pulse = Pulse(beat=1, moves=1, step=step, sync=2, place=place, **more)
        return Seen(pulse=pulse, silent_s=silent_s, still_s=still_s)

    def judge(*ranks: Seen) -> str:
        return stalled(dict(enumerate(ranks)), bound_s=60) or "nothing"

    assert judge(seen(7), seen(7)) == "nothing"  # the same work on all, as during a compilation
    assert judge(seen(7), seen(6, still_s=5)) == "nothing"  # one still makes progress
    assert judge(seen(7), seen(6, blocked=False)) == "nothing"  # one waits for a disk, or sleeps
    assert "Rank 1 counted fewer steps" in judge(seen(7), seen(6), seen(7, "b.py:2 in g"))
    assert "Ranks 0, 1 counted fewer steps" in judge(seen(6), seen(6), seen(7), seen(7))
    assert "Rank 2 counted more steps" in judge(seen(6), seen(6), seen(7))
    assert "different places after the same number of steps" in judge(seen(7), seen(7, "b.py:2 in g"))
    assert "Rank 1 does not answer" in judge(seen(7), seen(7, silent_s=60))
    assert judge(seen(7, blocked=False), seen(7, silent_s=60, state="ended")) == "nothing"  # the end of a run
    assert "Rank 1 left the job" in judge(seen(7), seen(7, state="ended"))
    assert "rank 1 has never reported" in judge(seen(7), Seen(pulse=None, silent_s=70, still_s=70))
