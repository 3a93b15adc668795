"""The eight defects of the reference: each check fails on a mutant that behaves like it, and passes on our code."""

import math

import pytest
import torch
from rank_pool import RankPool
from torch import nn
from torch.optim import SGD

from headrace_torch.hdet import HdetConfigError, OneCycleAutoLR, PaperRule
from headrace_torch.hdet.rules import decay_rate


def test_1_rates_fan_out_before_auto_lr_starts(ranks: RankPool) -> None:
    width = ranks.run("ranks_defects:fan_out")[0]
    assert width["ours"] == pytest.approx(0.6)
    assert width["reference"] == 0


def test_2_parameters_are_averaged_without_auto_lr_and_last_rates_are_reported(ranks: RankPool) -> None:
    seen = ranks.run("ranks_defects:averages_without_auto_lr")[0]
    assert seen["ours"] == (0.0, True)
    assert seen["reference"][0] > 0
    assert not seen["reference"][1]


def test_3_the_rate_decays_to_the_floor_and_does_not_grow(ranks: RankPool) -> None:
    seen = ranks.run("ranks_defects:decay_sign")[0]
    assert seen["ours"] == pytest.approx(1e-4, rel=1e-3)  # floor = max_lr/25/1e4 = start/1e4
    assert seen["reference"] == pytest.approx(400)  # 1e-3 → 0.4 with f_div/f_final as printed


def test_4_permutations_and_dropout_do_not_hang_on_the_global_generator(ranks: RankPool) -> None:
    places = ranks.run("ranks_defects:permutations_survive_extra_draws")[0]
    assert all(sorted(places_at) == [0, 1, 2, 3] for places_at in places["ours"])
    assert any(sorted(places_at) != [0, 1, 2, 3] for places_at in places["reference"])
    independent = ranks.run("ranks_defects:dropout_stays_independent")[0]
    assert independent == {"ours": True, "reference": False}


def test_5_rates_stay_floats_and_momentum_continues_cycling(ranks: RankPool) -> None:
    seen = ranks.run("ranks_defects:rates_and_momentum")[0]
    assert seen == {"ours": (True, True), "reference": (False, False)}


def test_6_the_constructor_averages_nothing(ranks: RankPool) -> None:
    seen = ranks.run("ranks_defects:warm_init_survives")[0]
    assert seen["ours"] > 0
    assert seen["reference"] == 0


@pytest.mark.full
def test_6_the_constructor_needs_no_process_group() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    assert OneCycleAutoLR(optimizer, 0.1, 10).get_last_lr() == pytest.approx([0.1 / 25])
    with pytest.raises(ValueError, match="process group has not been initialized"):
        torch.distributed.all_reduce(torch.zeros(1))  # what the reference does there


def test_7_lengths_that_cannot_be_are_named_and_epochs_work() -> None:
    def reference(total: int | None, warmup: int, interval: int) -> float:
        """γ as the reference computes it, before any check."""
        return 1 - math.exp(-math.log(25.0 / 1e4) / ((total - warmup) / interval))  # type: ignore[operator]

    with pytest.raises(TypeError):
        reference(None, 0, 1)
    with pytest.raises(ZeroDivisionError):
        reference(100, 10, 0)
    with pytest.raises(ZeroDivisionError):
        reference(100, 100, 10)
    assert 1 - reference(100, 200, 10) < 1  # nonsense is accepted: a decay over −10 syncs

    def ours(**settings: object) -> OneCycleAutoLR:
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
        return OneCycleAutoLR(optimizer, 0.1, enable_auto_lr=True, **settings)  # type: ignore[arg-type]

    for wrong, text in (
        ({}, "give total_steps, or epochs and steps_per_epoch"),
        (
            {"total_steps": 100, "auto_lr_warmup_steps": 10, "model_sync_interval": 0},
            "at least 1 step, not 0",
        ),
        ({"total_steps": 100, "auto_lr_warmup_steps": 100}, "must be less than total_steps"),
        ({"total_steps": 100, "auto_lr_warmup_steps": 200}, "must be less than total_steps"),
    ):
        with pytest.raises(HdetConfigError, match=text):
            ours(**wrong)
    assert ours(epochs=10, steps_per_epoch=10, auto_lr_warmup_steps=10).total_steps == 100


def test_7_a_state_holds_what_the_next_permutation_needs(ranks: RankPool) -> None:
    """The reference's state has no generator, so its permutations differ after a resume.

    Ours follow from a counter.
    """
    for at in (10, 13):
        assert all(ranks.run("ranks_resume:resumed_equals_straight", api="one_cycle", at=at))
    first, second = (torch.Generator().manual_seed(1024) for _ in range(2))
    torch.randperm(4, generator=first)  # the straight run has drawn once when the checkpoint is written
    straight = [torch.randperm(4, generator=first).tolist() for _ in range(3)]
    resumed = [torch.randperm(4, generator=second).tolist() for _ in range(3)]
    assert straight != resumed


def test_8_an_average_is_one_collective(ranks: RankPool) -> None:
    assert ranks.run("ranks_defects:collectives_per_average")[0] == {"ours": 1, "reference": 20}


def test_8_the_rate_has_a_floor() -> None:
    losses, values, floor = [0.0, 1.0], [1.0, 0.5], 1e-3
    gamma = decay_rate(0.1, floor, 10)
    reference = 0.01 * (1 - gamma) - 0.5 * 0.5
    assert reference < 0
    moved = PaperRule(sigma=0.1).move(
        center=0.01, velocity=-0.5, values=values, losses=losses, gamma=gamma, floor=floor
    )
    assert moved.center == floor


def test_8_all_micro_batches_count(ranks: RankPool) -> None:
    assert ranks.run("ranks_defects:micro_batches")[0] == {"ours": 2.0, "reference": 3.0}
