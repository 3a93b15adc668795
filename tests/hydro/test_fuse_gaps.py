"""What cannot be fused uses the fallback, with the layer and the op in the reason, and trains as in plain torch."""

import os
import signal

import pytest
import torch
from fuse_gaps import (
    Branch,
    Checkpointed,
    CheckpointedReentrant,
    Fails,
    Gru,
    Item,
    MaskIndex,
    Noise,
    Norm,
    Recurrent,
    cross_entropy,
    sequences,
)
from fuse_models import Solo, apart
from torch import nn

from headrace_torch import hydro

GAPS = {
    Recurrent: "lstm in layer cell (LSTM)",
    Gru: "gru in layer cell (GRU)",
    Item: "item in layer (model) (Item)",
    Branch: "__bool__ in layer (model) (Branch)",
    MaskIndex: "__getitem__ in layer (model) (MaskIndex)",
    Checkpointed: "activation checkpointing in layer (model) (Checkpointed)",
    CheckpointedReentrant: "activation checkpointing in layer (model) (CheckpointedReentrant)",
    Noise: "randn_like in layer (model) (Noise)",
}
MEMBERS = [{"lr": 0.02, "seed": 1}, {"lr": 0.05, "seed": 2}]


@pytest.mark.parametrize("model", GAPS, ids=lambda one: one.__name__)
def test_the_probe_falls_back_with_the_reason(model: type[nn.Module]) -> None:
    group = hydro.fuse(model, MEMBERS, workers=0)
    data = sequences(1) * 40
    losses = [group.step(batch, cross_entropy) for batch in data]
    assert group.engine == "separate"
    assert group.report is not None
    assert GAPS[model] in group.report.reason
    assert group.report.gaps.keys() == {"grouped", "vmap"}
    assert (sum(losses[-5:]) / 5 < 0.7 * losses[0]).all()


@pytest.mark.parametrize("model", [Recurrent, Item, Branch, MaskIndex], ids=lambda one: one.__name__)
def test_members_of_the_fallback_equal_plain_torch(model: type[nn.Module]) -> None:
    group = hydro.fuse(model, MEMBERS, workers=0)
    alone = []
    for member in MEMBERS:
        torch.manual_seed(member["seed"])
        alone.append(Solo(model(), member, "adamw"))
    for batch in sequences(10):
        losses = group.step(batch, cross_entropy)
        assert losses.tolist() == pytest.approx([one.step(batch, cross_entropy) for one in alone], rel=1e-5)


@pytest.mark.parametrize("model", [Checkpointed, CheckpointedReentrant, Noise], ids=lambda one: one.__name__)
def test_randomness_is_a_members_own(model: type[nn.Module]) -> None:
    data = sequences(5)
    state = torch.get_rng_state()
    both = hydro.fuse(model, MEMBERS, workers=0)
    second = hydro.fuse(model, MEMBERS[1:], workers=0)
    for batch in data:
        assert both.step(batch, cross_entropy)[1] == second.step(batch, cross_entropy)[0]
    assert torch.equal(torch.get_rng_state(), state)  # the user's generator is unchanged


def test_an_engine_that_is_asked_for_by_name_says_why_not() -> None:
    group = hydro.fuse(Recurrent, MEMBERS, engine="vmap")
    with pytest.raises(hydro.FusionGapError, match=r"lstm in layer cell \(LSTM\).*use engine='auto'"):
        group.step(sequences(1)[0], cross_entropy)


def test_a_rate_under_checkpointing_is_refused() -> None:
    group = hydro.fuse(Checkpointed, [{"lr": 1e-3, "dropout": 0.1}], workers=0)
    with pytest.raises(hydro.MemberError, match="dropout: the model recomputes"):
        group.step(sequences(1)[0], cross_entropy)


@pytest.mark.full
def test_a_pool_of_processes_trains_like_one_process() -> None:
    members = [*MEMBERS, {"lr": 0.01, "seed": 3, "clip": 0.5}]
    data = sequences(8)
    alone = hydro.fuse(Norm, members, workers=0)
    with hydro.fuse(Norm, members, workers=2) as group:
        for number, batch in enumerate(data):
            if number == 4:
                killed = group.worker_ids[0]
                # a worker keeps nothing: it is replaced, and the step repeated
                os.kill(killed, signal.SIGKILL)
            if number == 6:
                group.drop([1])
                alone.drop([1])
            losses = group.step(batch, cross_entropy)
            torch.testing.assert_close(losses, alone.step(batch, cross_entropy), rtol=1e-5, atol=1e-6)
        assert group.engine == "pool"
        assert group.report is not None
        assert "lstm in layer cell (LSTM)" in group.report.reason
        assert "over 2 processes" in group.report.reason
        workers = group.worker_ids
        assert len(workers) == 2
        assert os.getpid() not in workers
        assert killed not in workers
        for i in (0, 2):
            assert apart(group.member_state(i)["model"], alone.member_state(i)["model"]) < 1e-4
    assert group.worker_ids == []
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.full
def test_a_member_that_raises_in_a_worker_leaves_the_state_as_it_was() -> None:
    with hydro.fuse(Fails, MEMBERS, engine="pool", workers=1) as group:
        good = sequences(2)
        group.step(good[0], cross_entropy)
        before = group.member_state(0)
        with pytest.raises(hydro.PoolError, match="ArithmeticError: too large for this model"):
            group.step((good[1][0] * 1e4, good[1][1]), cross_entropy)
        assert apart(group.member_state(0)["model"], before["model"]) == 0
        assert group.steps() == {0: 1, 1: 1}
        group.step(good[1], cross_entropy)


def test_a_loss_that_cannot_be_pickled_stays_in_this_process() -> None:
    group = hydro.fuse(Recurrent, MEMBERS, workers=2)
    with pytest.warns(UserWarning, match="cannot be pickled"):
        group.step(sequences(1)[0], lambda model, batch: cross_entropy(model, batch))
    assert group.engine == "separate"
    assert group.report is not None
    assert "cannot be pickled" in group.report.reason
