"""Bad input: every rank gets the same error, and none waits for another."""

from typing import Any

import pytest
import torch
from rank_pool import RankPool
from torch import nn
from torch.optim import SGD

from headrace_torch.hdet import (
    HdetConfigError,
    HDETController,
    HDETScheduler,
    OneCycleAutoLR,
    ScalarHyperparameter,
    attention_temperature,
    dropout,
    label_smoothing,
    learning_rates,
    warm_init_,
    weight_decay,
)

TIMEOUT_S = 120

ONE_CYCLE: list[tuple[dict[str, Any], str]] = [
    ({"ensemble_lr_spread_ratio": 1.0}, "ensemble_lr_spread_ratio must be in [0, 1), not 1.0"),
    ({"ensemble_lr_spread_ratio": -0.1}, "ensemble_lr_spread_ratio must be in [0, 1), not -0.1"),
    ({"ensemble_lr_spread_ratio": float("nan")}, "ensemble_lr_spread_ratio must be in [0, 1), not nan"),
    ({"model_sync_interval": 0}, "model_sync_interval must be at least 1 step, not 0"),
    ({"auto_lr_warmup_steps": 100}, "auto_lr_warmup_steps (100) must be less than total_steps (100)"),
    ({"auto_lr_warmup_steps": 101}, "auto_lr_warmup_steps (101) must be less than total_steps (100)"),
    ({"auto_lr_warmup_steps": -1}, "auto_lr_warmup_steps must be at least 0, not -1"),
    ({"total_steps": None}, "give total_steps, or epochs and steps_per_epoch"),
    ({"total_steps": None, "epochs": 3}, "give total_steps, or epochs and steps_per_epoch"),
    ({"total_steps": 0}, "total_steps must be at least 1, not 0"),
    ({"momentum_of_lr": 1.0}, "momentum_of_lr must be in [0, 1), not 1.0"),
    ({"loss_scale": 0.0}, "loss_scale must be positive, not 0.0"),
    ({"lr_of_lr": -1.0}, "lr_of_lr must be positive, not -1.0"),
    ({"design": "latin"}, "design must be one of orthogonal, antithetic, permutation, not 'latin'"),
    ({"model_sync_interval": "5"}, "model_sync_interval must be a whole number, at least 1 step, not '5'"),
    ({"model_sync_interval": 2.5}, "model_sync_interval must be a whole number, at least 1 step, not 2.5"),
    ({"loss_scale": "0.1"}, "the argument cannot be read: TypeError"),
    ({"max_lr": -0.1}, "max_lr must be positive and finite, not -0.1"),
    ({"max_lr": float("nan")}, "max_lr must be positive and finite, not nan"),
    ({"max_lr": [0.1, 0.2]}, "max_lr has 2 rates and the optimizer 1 parameter groups; give one for each"),
    ({"form": "log"}, "form must be one of factor, paper, not 'log'"),
    ({"last_epoch": 5}, "last_epoch=5 cannot restore the state of auto-LR; use load_state_dict"),
]
CONTROLLER: list[tuple[dict[str, Any], str]] = [
    ({"sync_every": 0}, "sync_every must be at least 1 step, not 0"),
    ({"spread": 1.0}, "lr/0: spread must be in [0, 1), not 1.0"),
    ({"low": 2.0}, "lr/0: its value 1.0 is outside its bounds [2.0, 1000.0]"),
    ({"low": -1.0}, "lr/0: a log transform needs low > 0, not -1.0"),
    ({"low": 5.0, "high": 1.0}, "lr/0: bounds must be finite with low < high"),
    ({"out_of_bounds": True}, "x: its value 5.0 is outside its bounds [0.0, 1.0]"),
    ({"twice": True}, "hyperparameters need distinct names"),
    ({"dropout": True}, "dropout acts through the gradient, which replicas share under mode='shared_grad'"),
    ({"mode": "both"}, "mode must be one of shared_grad, local_grad, not 'both'"),
    ({"design": "latin"}, "design must be one of"),
    ({"optimizer_state": "drop"}, "optimizer_state must be one of keep, average, reset, not 'drop'"),
    ({"buffers": "drop"}, "buffers must be one of average, broadcast, keep, not 'drop'"),
    ({"score": "accuracy"}, "score must be 'loss' or a Probe, not 'accuracy'"),
    ({"start_after": -1}, "start_after must be at least 0 steps, not -1"),
    ({"bucket_bytes": 0}, "bucket_bytes must be at least 1, not 0"),
    ({"sync_every": "5"}, "sync_every must be a whole number, at least 1 step, not '5'"),
    ({"sync_every": 2.5}, "sync_every must be a whole number, at least 1 step, not 2.5"),
    ({"spread": "wide"}, "the argument cannot be read: TypeError"),
    ({"cap": 0.0}, "rule.cap must be positive, not 0.0"),
]


@pytest.mark.cases(7)
@pytest.mark.parametrize(("wrong", "text"), ONE_CYCLE, ids=lambda case: str(case)[:50])
@pytest.mark.parametrize("only_rank", [None, 2])
def test_the_drop_in_tells_all_ranks_the_same(
    ranks: RankPool, wrong: dict[str, Any], text: str, only_rank: int | None
) -> None:
    told = ranks.run("ranks_inputs:one_cycle", timeout_s=TIMEOUT_S, only_rank=only_rank, **wrong)
    assert len(set(told)) == 1
    assert told[0].startswith(text if only_rank is None else f"rank 2: {text}")


@pytest.mark.cases(7)
@pytest.mark.parametrize(("wrong", "text"), CONTROLLER, ids=lambda case: str(case)[:50])
@pytest.mark.parametrize("only_rank", [None, 0])
def test_the_controller_tells_all_ranks_the_same(
    ranks: RankPool, wrong: dict[str, Any], text: str, only_rank: int | None
) -> None:
    told = ranks.run("ranks_inputs:controller", timeout_s=TIMEOUT_S, only_rank=only_rank, **wrong)
    assert len(set(told)) == 1
    assert told[0].startswith(text if only_rank is None else f"rank 0: {text}")


@pytest.mark.parametrize(
    ("target", "other", "text"),
    [
        (
            "one_cycle",
            {"model_sync_interval": 7},
            "model_sync_interval differs between ranks: rank 0 has 5, rank 3 has 7",
        ),
        ("one_cycle", {"ensemble_lr_spread_ratio": 0.0}, "ensemble_lr_spread_ratio differs between ranks"),
        (
            "one_cycle",
            {"total_steps": 90},
            "total_steps differs between ranks: rank 0 has 100, rank 3 has 90",
        ),
        ("controller", {"sync_every": 7}, "sync_every differs between ranks: rank 0 has 5, rank 3 has 7"),
        ("controller", {"seed": 7}, "seed differs between ranks: rank 0 has 0, rank 3 has 7"),
        ("controller", {"spread": 0.0}, "hyperparameters differs between ranks"),
    ],
    ids=str,
)
def test_ranks_that_disagree_are_all_told_so(
    ranks: RankPool, target: str, other: dict[str, Any], text: str
) -> None:
    told = ranks.run(f"ranks_inputs:{target}", timeout_s=TIMEOUT_S, only_rank=3, **other)
    assert len(set(told)) == 1
    assert told[0].startswith(text)


def test_ranks_with_other_parameter_groups_are_all_told_so(ranks: RankPool) -> None:
    told = ranks.run("ranks_inputs:other_groups", timeout_s=TIMEOUT_S)
    assert set(told) == {
        "parameter groups differs between ranks: rank 0 has 1, rank 2 has 2; give all ranks the same"
    }


def test_a_loss_of_several_numbers_is_refused() -> None:
    model = nn.Linear(2, 2)
    controller = HDETController(model, SGD(model.parameters(), lr=0.1), [])
    with pytest.raises(HdetConfigError, match=r"one number, not a tensor of shape \(3,\): give the mean"):
        controller.observe(torch.ones(3))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("fails", "rank 2: the probe failed at sync 1: OSError: the disk is gone"),
        ("differs", "replicas were given different probe batches at sync 1"),
    ],
)
def test_a_probe_that_cannot_score_stops_all_ranks(ranks: RankPool, kind: str, text: str) -> None:
    told = ranks.run("ranks_inputs:probe", timeout_s=TIMEOUT_S, kind=kind)
    assert len(set(told)) == 1
    assert told[0].startswith(text)


def test_a_sync_without_any_finite_replica_stops_all_ranks(ranks: RankPool) -> None:
    told = ranks.run("ranks_inputs:all_diverged", timeout_s=TIMEOUT_S)
    assert set(told) == {
        "no replica has finite parameters at sync 1; lower the learning rate and restart from a checkpoint"
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("world size", "the checkpoint was written with 8 replicas and there are 4"),
        ("rank", "rank 1: the state of replica 0 was loaded on replica 1 in the middle of an interval"),
        ("cut", "has no loss_total"),
        ("settings", "was 5 when the checkpoint was written and is 6 now"),
        ("mixed", " differs between ranks: rank 0 has 3, rank 2 has 2"),
        ("words", "rank 1: the argument cannot be read: ValueError"),
        ("loss", "rank 1: the argument cannot be read: TypeError"),
        ("short", "rank 1: the argument cannot be read: "),
        ("nothing", "rank 1: the argument cannot be read: AttributeError"),
    ],
)
@pytest.mark.parametrize("api", ["controller", "one_cycle"])
def test_a_checkpoint_that_does_not_fit_is_refused_on_all_ranks(
    ranks: RankPool, api: str, kind: str, text: str
) -> None:
    told = ranks.run("ranks_inputs:resume", timeout_s=TIMEOUT_S, api=api, kind=kind)
    assert len(set(told)) == 1
    assert text in told[0]


def test_a_spread_without_a_process_group_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(HdetConfigError, match="there is no process group"):
        OneCycleAutoLR(optimizer, 0.1, 10, ensemble_lr_spread_ratio=0.1, rank=0, world_size=4)
    with pytest.raises(HdetConfigError, match="there is no process group"):
        HDETController(model, optimizer, learning_rates(optimizer))


def test_one_process_without_a_spread_is_one_cycle() -> None:
    ours, plain = (SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9) for _ in range(2))
    first = OneCycleAutoLR(ours, 0.1, epochs=2, steps_per_epoch=5)
    second = torch.optim.lr_scheduler.OneCycleLR(plain, 0.1, epochs=2, steps_per_epoch=5)
    for _ in range(9):
        ours.step()
        plain.step()
        first.step(torch.tensor(1.0))
        second.step()
        assert ours.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        assert ours.param_groups[0]["momentum"] == plain.param_groups[0]["momentum"]


def test_hyperparameters_that_cannot_be_found_are_refused() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.2))
    with pytest.raises(HdetConfigError, match=r"start from different values \[0.1, 0.2\]; pass start="):
        dropout(model)
    assert dropout(model, start=0.3).get() == model[1].p == 0.3
    with pytest.raises(HdetConfigError, match="no dropout layer"):
        dropout(nn.Linear(1, 1))
    with pytest.raises(HdetConfigError, match="no parameter group has a weight decay"):
        weight_decay(SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    with pytest.raises(HdetConfigError, match="no module given"):
        attention_temperature([])
    with pytest.raises(HdetConfigError, match="nu must be finite"):
        warm_init_([torch.ones(2)], -1.0)
    smoothing = label_smoothing(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert (smoothing.get(), smoothing.probe_value, smoothing.acts_on) == (0.1, 0.0, "gradient")


def test_a_scheduler_needs_a_learning_rate_to_multiply() -> None:
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    still = ScalarHyperparameter("x", lambda: 0.5, lambda _v: None, "identity", 0.0, 1.0, 0.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with pytest.raises(HdetConfigError, match="explores no learning rate of this optimizer"):
        HDETScheduler(schedule, HDETController(model, optimizer, [still]))


def test_a_schedule_that_needs_a_metric_is_given_one() -> None:
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.0))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    scheduler = HDETScheduler(schedule, controller)
    with pytest.raises(HdetConfigError, match="needs step"):
        scheduler.step(1.0)
    for metric in (1.0, 2.0):
        scheduler.step(1.0, metric=metric)
    assert scheduler.get_last_lr() == [0.05]
