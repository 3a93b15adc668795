"""The first step of a group: what it runs, and what it reports as its cost."""

import copy
from typing import Any

import pytest
import torch
from fuse_models import Mlp, batches, factory, loss_of, mixed_members
from torch import Tensor, nn

from headrace_torch import hydro
from headrace_torch.hydro.fuse import inspection, reference
from headrace_torch.hydro.fuse.engines import separate, stacked
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.equality import telling
from headrace_torch.hydro.fuse.member import LossScale, Member
from headrace_torch.hydro.fuse.schedules import Cosine

BATCH = batches("mlp", 1, dtype=torch.float32)[0]


class Copied:
    """Counts its deep copies."""

    def __init__(self, copies: list[int]) -> None:
        self.copies = copies

    def __deepcopy__(self, memo: dict[int, Any]) -> "Copied":
        self.copies.append(1)
        return self


def members(count: int) -> list[dict[str, Any]]:
    return [{"lr": 1e-3 * (i + 1)} for i in range(count)]


@pytest.mark.parametrize("count", [4, 16])
def test_it_runs_the_loss_few_times_whatever_the_number_of_members(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []  # out of reach of the user's code, because the probe restores what that can reach

    def counted(loss: Any, rows: Any) -> Tensor:
        calls.append(1)
        return checked(loss, rows)

    for place in (inspection, reference, separate, stacked):
        monkeypatch.setattr(place, "checked", counted)
    group = hydro.fuse(factory("mlp", torch.float32), members(count), workers=0)
    group.step(BATCH, loss_of)
    assert len(calls) <= 38, "it was 52 for 4 members, and 100 for 16"


def test_it_makes_few_copies_of_the_model() -> None:
    copies: list[int] = []
    model = Mlp()
    model.counts = Copied(copies)
    group = hydro.fuse(model, members(16), workers=0)
    copies.clear()
    group.step(BATCH, loss_of)
    assert len(copies) <= 14, "it was 32"


def test_a_copy_shares_no_registry_with_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    group = hydro.fuse(model, members(2), workers=0)
    ours, theirs = group.member_model(0), copy.deepcopy(model)
    for one, other, plain in zip(ours.modules(), model.modules(), theirs.modules(), strict=True):
        for name, held in vars(one).items():
            if isinstance(held, dict | set):
                assert held is not vars(other)[name], name
                assert type(held) is type(vars(plain)[name]), name
                assert held.keys() == vars(plain)[name].keys() if isinstance(held, dict) else True


@pytest.mark.parametrize(
    ("others", "positions"),
    [
        ([], [0]),
        ([{}, {}, {}], [0, 1]),
        ([{"lr": 0.5, "seed": 3, "weight_decay": 0.0}], [0, 1]),
        ([{}, {}, {"clip": 1.0}, {"clip": 2.0}], [0, 3]),
        ([{}, {"schedule": Cosine(steps=9)}, {"clip": 1.0}, {"momentum": 0.9}], [0, 2, 3]),
        ([{}, {"model": {"act": "relu"}}, {"model": {"act": "tanh"}}, {}], [0, 2, 3]),
        ([{"scaler": LossScale()}, {"dropout": 0.1}], [0, 1, 2]),
    ],
)
def test_members_of_different_kinds_are_compared(others: list[dict[str, Any]], positions: list[int]) -> None:
    assert telling([Member(lr=0.1), *(Member(**{"lr": 0.2, **one}) for one in others)]) == positions


def test_a_late_member_of_another_kind_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace_torch.hydro.fuse import gradients, updates

    real = gradients.clip

    def forgets_norms(slots: Any, grads: Tensor) -> None:
        real(
            [slot for slot in slots if slot.member.clip is None],
            grads[[s.member.clip is None for s in slots]],
        )

    monkeypatch.setattr(updates, "clip", forgets_norms)
    clipped = [*members(5), {"lr": 1e-2, "clip": 1e-3}]
    group = hydro.fuse(factory("mlp", torch.float32), clipped, "sgd", workers=0)
    with pytest.raises(hydro.FuseError, match="differs from torch"):
        group.step(BATCH, loss_of)


def test_the_group_says_what_it_cost() -> None:
    group = hydro.fuse(factory("mlp", torch.float32), mixed_members("adamw")[:4], workers=0)
    assert group.first_step is None
    group.step(BATCH, loss_of)
    first = group.first_step
    assert first is not None
    assert (first.members, first.later_s, first.steps) == (4, 0.0, 0.0)
    for _ in range(9):
        group.step(BATCH, loss_of)
    assert group.first_step is first
    assert 0 < first.later_s < first.time_s
    assert first.steps == first.time_s / first.later_s
    group.add(members(4))
    group.step(BATCH, loss_of)
    again = group.first_step
    assert again is not None
    assert again.members == 8, "it has doubled, so it was looked at anew"
