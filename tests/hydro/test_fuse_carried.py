"""A member's state holds its extra state and what it remembers in Python; what it cannot hold is named."""

import functools
import gc
import itertools
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from headrace_torch import hydro

ENGINES = ["separate", "grouped", "vmap"]
X = torch.linspace(-1, 1, 40).reshape(10, 4)
MEMBERS = [{"lr": 0.01, "seed": seed} for seed in range(3)]


class Annealed:
    """A loss whose weight grows for sixty steps."""

    def __init__(self) -> None:
        self.calls = 0
        self.betas: list[float] = []

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.calls += 1
        self.betas.append(min(1.0, self.calls / 60))
        return model(batch).square().mean() * self.betas[-1]


class Scaled(nn.Module):
    """Its scale is in the extra state; a step changes it, or nothing does."""

    def __init__(self, factor: float = 1.1) -> None:
        super().__init__()
        self.layer, self.scale, self.factor = nn.Linear(4, 3), 1.0, factor

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= self.factor
        return self.layer(x) * self.scale

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


class Deep(nn.Module):
    """A layer with an extra state, in a model with a cache of its own."""

    def __init__(self, factor: float = 1.1) -> None:
        super().__init__()
        self.inner = nn.Sequential(Scaled(factor), nn.Tanh())
        self.shapes: dict[torch.Size, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.setdefault(x.shape, len(self.shapes))
        return self.inner(x)


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def trained(make: Callable[[], nn.Module], loss: Any, steps: int, engine: Any = "auto") -> hydro.Group:
    group = hydro.fuse(make, MEMBERS, engine=engine)
    for _ in range(steps):
        group.step(X, loss)
    return group


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
def test_counts_and_lists_go_on_in_any_engine(here: Any, there: Any) -> None:
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
    assert another.calls == 5  # what the user sees is the first member's
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
    """Ids are the same, and the modules of those who were here must not stay."""
    group, saved = trained(Scaled, mean_square, 6), trained(Scaled, mean_square, 2).state_dict()
    group.load_state_dict(saved)
    fresh = hydro.fuse(Scaled)
    fresh.load_state_dict(saved)
    assert torch.equal(group.step(X, mean_square), fresh.step(X, mean_square))


def test_what_the_user_changes_is_not_a_members_own_and_is_not_lost() -> None:
    loss = Annealed()
    loss.scale = 1.0  # type: ignore[attr-defined]  # set by the user
    group = trained(linear, loss, 2)
    loss.scale = 2.0  # type: ignore[attr-defined]
    state = group.member_state(2)
    assert loss.scale == 2.0  # type: ignore[attr-defined]
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
    """One comes late in the new process too: what is its waits until then, and is passed on meanwhile."""

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
    """Each step adds objects, so everything is read again, and what the other loss remembers must not be lost."""

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


def test_a_state_without_it_is_refused_where_a_number_counts() -> None:
    """As earlier versions wrote it, and as plain torch does."""
    group, loss = hydro.fuse(linear, [{"lr": 0.01}, {"lr": 0.02}], engine="grouped"), Annealed()
    for _ in range(3):
        group.step(X, loss)
    saved = group.state_dict()
    for one in saved["members"]:
        del one["remembered"]
    expected = "member {} has seen 3 batches elsewhere, and its state does not hold loss.calls"
    with pytest.raises(hydro.FuseError, match=expected.format(2)):
        group.add([{"lr": 0.01}], [saved["members"][0]])
    assert group.ids == [0, 1]
    other = hydro.fuse(linear)
    other.load_state_dict(saved)
    with pytest.raises(hydro.FuseError, match=expected.format(0)):
        other.step(X, Annealed())
    without = hydro.fuse(linear)
    without.load_state_dict(saved)
    without.step(X, mean_square)  # nothing counts here


def test_an_iterator_of_the_model_is_refused_when_it_is_saved() -> None:
    class Numbers(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.ids = itertools.count()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * (1.0 if next(self.ids) < 4 else 0.5)

    group = hydro.fuse(Numbers, MEMBERS)
    group.state_dict()
    group.step(X, mean_square)
    group.member_model(0)
    # Its layer says by itself what is kept; without that nobody does.
    group.member_state(0)
    del Scaled.get_extra_state
    try:
        with pytest.raises(
            hydro.FuseError, match=r"cannot hold ids, which a step changes.*self\.calls \+= 1"
        ):
            group.member_state(0)
    finally:
        Scaled.get_extra_state = _EXTRA  # type: ignore[method-assign]  # put back


_EXTRA = Scaled.get_extra_state


def test_an_object_that_a_step_made_is_warned_of_once() -> None:
    class Keeps:
        last: Any = None

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            out = model(batch)
            self.last = functools.partial(print, out.shape)
            return out.square().mean()

    group = trained(linear, Keeps(), 2)
    with pytest.warns(UserWarning, match=r"does not hold loss\(Keeps\)\.last, an object that a step made"):
        state = group.member_state(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group.member_state(1)
    group.add([{"lr": 0.01}], [state])
    group.step(X, Keeps())


@pytest.mark.parametrize("engine", ENGINES)
def test_an_activation_that_a_model_keeps_is_nothing_to_warn_of(engine: Any) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.layer(x)
            return self.last

    group = trained(Last, mean_square, 2, engine)
    moved = hydro.fuse(Last, engine=engine)
    moved.load_state_dict(group.state_dict())
    assert torch.equal(moved.step(X, mean_square), group.step(X, mean_square))
    assert group.member_model(1)(X).shape == (10, 3)


def test_what_the_program_no_longer_has_is_warned_of_and_stays_in_the_state() -> None:
    state = trained(linear, Annealed(), 2).member_state(0)
    group = hydro.fuse(linear)
    group.add([{"lr": 0.01}], [state])

    def annealed(model: nn.Module, batch: Tensor) -> Tensor:
        return mean_square(model, batch)

    annealed.__name__ = "Annealed"
    with pytest.warns(
        UserWarning, match=r"member 0 remembers .*loss\(Annealed\).*does not have: it stays in"
    ):
        group.step(X, annealed)
    assert group.member_state(0)["remembered"] == state["remembered"]


def test_an_extra_state_that_does_not_fit_names_the_member() -> None:
    group = hydro.fuse(Scaled, MEMBERS)
    group.add([{"lr": 0.01}], [{"model": {**Scaled().state_dict(), "_extra_state": {"other": 1}}}])
    for _ in range(2):  # it does not begin without it at the second try
        with pytest.raises(
            hydro.MemberError, match=r"member 3: set_extra_state of _extra_state raised KeyError"
        ) as caught:
            group.step(X, mean_square)
    assert caught.value.member == 3
    group.drop([3])
    group.step(X, mean_square)


def test_a_state_that_cannot_be_read_is_refused_and_changes_nothing() -> None:
    loss = Annealed()
    group = trained(linear, loss, 2)
    state = group.member_state(0)
    with pytest.raises(hydro.MemberError, match=r"state\['remembered'\] is a list, not a mapping"):
        group.add([{"lr": 0.01}], [{**state, "remembered": [1]}])
    assert group.ids == [0, 1, 2]
    name = "attributes loss(Annealed)"
    newer = {name: {"names": [["calls", {"kind": "quaternion", "items": 0}]], "gone": []}}
    (number,) = group.add([{"lr": 0.01}], [{**state, "remembered": newer}])
    for _ in range(2):
        with pytest.raises(hydro.FuseError, match="unknown kind 'quaternion': a newer Headrace"):
            group.step(X, loss)
    group.drop([number])
    group.step(X, loss)
    assert loss.calls == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_generators_go_on(engine: Any) -> None:
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
