"""A member's state contains its extra state and its state in Python."""

import functools
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from carried_models import ENGINES, MEMBERS, Annealed, Deep, Scaled, X, linear, mean_square, trained
from torch import Tensor, nn

from headrace_torch import hydro


@pytest.mark.parametrize("make", [Scaled, Deep])
def test_extra_state_is_the_members_own(make: Callable[[], nn.Module]) -> None:
    group, key = trained(make, mean_square, 4), "_extra_state" if make is Scaled else "inner.0._extra_state"
    group.add([{"lr": 0.01}])
    group.step(X, mean_square)
    scales = [group.member_state(i)["model"][key]["scale"] for i in group.ids]
    assert scales == pytest.approx([1.1**5] * 3 + [1.1])
    assert [group.member_model(i).state_dict()[key]["scale"] for i in group.ids] == scales
    loaded = hydro.fuse(make)
    loaded.load_state_dict(group.state_dict())
    moved = hydro.fuse(make, MEMBERS[:1])
    moved.step(X, mean_square)
    moved.add([{"lr": 0.01}], [group.member_state(1)])
    plain = make()
    plain.load_state_dict(group.member_state(1)["model"])
    optimizer = torch.optim.AdamW(plain.parameters())
    optimizer.load_state_dict(group.member_state(1)["optimizer"])
    for _ in range(3):
        expected = group.step(X, mean_square)
        assert torch.equal(loaded.step(X, mean_square), expected)
        assert torch.equal(moved.step(X, mean_square)[1], expected[1])
        optimizer.zero_grad()
        loss = mean_square(plain, X)
        loss.backward()
        optimizer.step()
        assert float(loss.detach()) == pytest.approx(float(expected[1]), rel=1e-6)


@pytest.mark.parametrize("begun", [False, True], ids=["at the first step", "later"])
@pytest.mark.parametrize("make", [Scaled, Deep])
def test_an_extra_state_that_no_step_changes_is_carried_too(make: Any, *, begun: bool) -> None:
    """A fused pass would share one scale, so the members run separately."""
    plain, make = make(1.0), functools.partial(make, 1.0)
    for one in plain.modules():
        if isinstance(one, Scaled):
            one.scale = 3.0
    group = hydro.fuse(make, MEMBERS)
    before = group.step(X, mean_square) if begun else torch.zeros(3)
    assert group.engine in (None, "grouped", "vmap", "separate")
    (number,) = group.add([{"lr": 0.0}], [{"model": plain.state_dict()}])
    assert float(group.step(X, mean_square)[3]) == pytest.approx(
        float(mean_square(plain, X).detach()), rel=1e-6
    )
    assert group.member_model(number).state_dict().keys() == plain.state_dict().keys()
    assert len(before) == 3


@pytest.mark.parametrize("there", ENGINES)
@pytest.mark.parametrize("here", ENGINES)
def test_counts_and_lists_continue_in_any_engine(here: Any, there: Any) -> None:
    loss, other = Annealed(), Annealed()
    group = trained(linear, loss, 5, here)
    moved = hydro.fuse(linear, engine=there)
    moved.load_state_dict(group.state_dict())
    late = hydro.fuse(linear, MEMBERS, engine=there)
    another = Annealed()
    late.step(X, another)
    (number,) = late.add([{"lr": 0.01}], [group.member_state(2)])
    for _ in range(4):
        expected = group.step(X, loss)
        torch.testing.assert_close(moved.step(X, other), expected)
        torch.testing.assert_close(late.step(X, another)[3], expected[2])
    assert (other.calls, other.betas) == (loss.calls, loss.betas)
    assert another.calls == 5  # the user sees the first member's
    assert late.member_state(number)["remembered"] == group.member_state(2)["remembered"]


def test_a_state_that_nobody_has_trained_on_since_is_passed_on_whole() -> None:
    group = trained(Scaled, Annealed(), 3)
    state = group.member_state(1)
    waiting = hydro.fuse(Scaled)
    waiting.add([{"lr": 0.01}], [state])
    assert waiting.member_state(0)["remembered"] == state["remembered"]
    assert waiting.member_state(0)["model"]["_extra_state"] == state["model"]["_extra_state"]
    late = hydro.fuse(Scaled, MEMBERS)
    late.step(X, Annealed())
    (number,) = late.add([{"lr": 0.01}], [state])
    assert late.member_state(number)["remembered"] == state["remembered"]
    assert late.member_model(number).scale == pytest.approx(1.1**3)  # type: ignore[arg-type]  # a number


def test_a_group_that_has_trained_takes_others_members() -> None:
    """The ids are the same, and the modules of the earlier members must not stay."""
    group, saved = trained(Scaled, mean_square, 6), trained(Scaled, mean_square, 2).state_dict()
    group.load_state_dict(saved)
    fresh = hydro.fuse(Scaled)
    fresh.load_state_dict(saved)
    assert torch.equal(group.step(X, mean_square), fresh.step(X, mean_square))


def test_what_the_user_changes_is_not_a_members_own_and_is_not_lost() -> None:
    loss = Annealed()
    loss.scale = 1.0  # type: ignore[attr-defined]  # set by the user
    group = trained(linear, loss, 2)
    loss.scale = 2.0  # type: ignore[attr-defined]  # set by the user
    state = group.member_state(2)
    assert loss.scale == 2.0  # type: ignore[attr-defined]  # set by the user
    assert state["remembered"]["attributes loss(Annealed)"]["names"] == [["calls", 2]]


def test_a_step_that_freezes_a_parameter_has_frozen_it_after_a_pause() -> None:
    class Freezes(Scaled):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 2:
                self.layer.bias.requires_grad = False
            return super().forward(x)

    group = trained(Freezes, mean_square, 3)
    moved = hydro.fuse(Freezes)
    moved.load_state_dict(group.state_dict())
    for _ in range(3):
        assert torch.equal(moved.step(X, mean_square), group.step(X, mean_square))
    assert torch.equal(
        moved.member_state(0)["model"]["layer.bias"], group.member_state(0)["model"]["layer.bias"]
    )


def test_several_losses_each_remember() -> None:
    """One is called late in the new process too: its state waits until then, and is passed on meanwhile."""

    class Other(Annealed):
        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            self.betas += [self.calls / 7, 1.0]
            return super().__call__(model, batch) * sum(self.betas)

    one, two = Annealed(), Other()
    group = hydro.fuse(linear, MEMBERS)
    for loss in (one, two, two, one, two):
        group.step(X, loss)
    moved, first, second = hydro.fuse(linear), Annealed(), Other()
    moved.load_state_dict(group.state_dict())
    for _ in range(2):
        assert torch.equal(moved.step(X, first), group.step(X, one))
    assert moved.member_state(1)["remembered"] == group.member_state(1)["remembered"]
    for _ in range(2):
        assert torch.equal(moved.step(X, second), group.step(X, two))
    assert (first.calls, second.calls) == (4, 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_losses_that_alternate_keep_what_they_remember(engine: Any) -> None:
    """Each step adds objects, so everything is read again, and the other loss's state must not be lost."""

    class Grows:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            self.kept.append((len(self.kept), [batch.shape]))
            return mean_square(model, batch) * len(self.kept)

    class Another(Grows):
        pass

    one, two = Grows(), Another()
    group = hydro.fuse(linear, [{"lr": 0.0}], engine=engine)
    base = float(group.step(X, one))
    group.add([{"lr": 0.0}])
    for step in range(1, 4):
        assert (group.step(X, one) / base).tolist() == pytest.approx([step + 1, step])
        assert (group.step(X, two) / base).tolist() == pytest.approx([step, step])
    assert (len(one.kept), len(two.kept)) == (4, 3)


def test_a_closure_that_is_made_at_each_step_is_let_go() -> None:
    """It may hold a batch."""
    calls, held, losses = [0], [], []

    def made(target: Tensor) -> Callable[[nn.Module, Tensor], Tensor]:
        def loss(model: nn.Module, batch: Tensor) -> Tensor:
            calls[0] += 1
            return (model(batch) - target).square().mean() * calls[0]

        return loss

    group = hydro.fuse(linear, [{"lr": 0.0}, {"lr": 0.0}], engine="grouped")
    for _ in range(40):
        target = torch.zeros(10, 3)
        held.append(weakref.ref(target))
        losses.append(group.step(X, made(target)))
    torch.testing.assert_close(losses[-1], losses[0] * 40)
    del target
    gc.collect()
    assert sum(one() is not None for one in held) < 15
    moved, other = hydro.fuse(linear), calls.copy()
    moved.load_state_dict(group.state_dict())
    calls[0] = 0
    torch.testing.assert_close(moved.step(X, made(torch.zeros(10, 3))), losses[0] * 41)
    assert (calls, other) == ([41], [40])


@pytest.mark.parametrize("engine", ENGINES)
def test_generators_continue(engine: Any) -> None:
    class Draws(Annealed):
        def __init__(self) -> None:
            super().__init__()
            self.draw, self.numbers = random.Random(4), numpy.random.default_rng(3)

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            return super().__call__(model, batch) * (self.draw.random() + float(self.numbers.random()))

    loss, other = Draws(), Draws()
    group = trained(linear, loss, 3, engine)
    moved = hydro.fuse(linear, engine=engine)
    moved.load_state_dict(group.state_dict())
    for _ in range(3):
        assert torch.equal(moved.step(X, other), group.step(X, loss))
