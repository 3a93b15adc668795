"""State that a member's state cannot contain, or that it lacks, is named: refused if it matters, else warned of
once."""

import functools
import itertools
import warnings
from typing import Any

import pytest
import torch
from carried_models import ENGINES, MEMBERS, Annealed, Scaled, X, linear, mean_square, trained
from torch import Tensor, nn

from headrace_torch import hydro


def test_a_state_without_it_is_refused_where_a_number_counts() -> None:
    """Earlier versions wrote such states, and plain torch does."""
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
    without.step(X, mean_square)  # nothing is counted here


def test_an_iterator_of_the_model_is_refused_when_it_is_saved() -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.ids = nn.Linear(4, 3), itertools.count()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * (1.0 if next(self.ids) < 4 else 0.5)

    class Says(Numbers):
        """Defines itself what is kept of it."""

        def get_extra_state(self) -> Any:
            return {"next": self.ids.__reduce__()[1][0]}

        def set_extra_state(self, state: Any) -> None:
            self.ids = itertools.count(state["next"])

    group = hydro.fuse(Numbers, MEMBERS)
    group.state_dict()
    group.step(X, mean_square)
    group.member_model(0)
    with pytest.raises(hydro.FuseError, match=r"cannot hold ids, which a step changes.*self\.calls \+= 1"):
        group.member_state(0)
    says, moved = trained(Says, mean_square, 3), hydro.fuse(Says)
    moved.load_state_dict(says.state_dict())
    for _ in range(3):
        assert torch.equal(moved.step(X, mean_square), says.step(X, mean_square))


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
    for _ in range(2):  # a second try does not start without it either
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
        with pytest.raises(
            hydro.FuseError, match="unknown kind 'quaternion': it was written by a newer Headrace"
        ):
            group.step(X, loss)
    group.drop([number])
    group.step(X, loss)
    assert loss.calls == 3
