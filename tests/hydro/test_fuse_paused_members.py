"""A member pauses in one group and continues in another one, alone, or in plain torch. A group is saved and loaded."""

from typing import Any

import pytest
import torch
from fuse_models import OPTIMIZERS, Mlp, Solo, apart, batches, built, factory, loss_of
from torch import Tensor, nn

from headrace_torch import hydro

SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"weight_decay": 0.05},
    "adam": {"betas": (0.8, 0.99)},
    "sgd": {"momentum": 0.9, "dampening": 0.1},
}


def dropping() -> nn.Module:
    return Mlp(rate=0.3).double()


def members(optimizer: str, count: int) -> list[dict[str, Any]]:
    return [{"lr": 1e-3 * (i + 1), "seed": i, **SETTINGS[optimizer]} for i in range(count)]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "optimizer", "dtype", "most"),
    [
        ("mlp", "adamw", torch.float64, 1e-9),
        ("cnn", "sgd", torch.float64, 1e-9),
        ("mlp", "adam", torch.float32, 1e-5),
    ],
)
def test_a_member_of_sixteen_continues_anywhere(
    name: str, optimizer: Any, dtype: torch.dtype, most: float
) -> None:
    """The reference is plain torch for all 50 steps; `cnn` has BatchNorm."""
    every, make, data = members(optimizer, 16), factory(name, dtype), batches(name, 50, dtype=dtype)
    crowd = hydro.fuse(make, every, optimizer, engine="grouped")
    solo = Solo(built(name, 5, dtype), every[5], optimizer)
    for batch in data[:20]:
        crowd.step(batch, loss_of)
        solo.step(batch)
    state = crowd.member_state(5)
    few = hydro.fuse(make, optimizer=optimizer, engine="grouped")
    few.add(every[:2])
    few.add([state["settings"]], [state], names=["back"])
    alone = hydro.fuse(make, optimizer=optimizer, engine="separate")
    alone.add([every[5]], [state])
    plain = Solo(make(), every[5], optimizer)
    plain.model.load_state_dict(state["model"])
    plain.optimizer.load_state_dict(state["optimizer"])
    for batch in data[20:]:
        expected = solo.step(batch)
        assert plain.step(batch) == pytest.approx(expected, rel=most)
        assert few.step(batch, loss_of)[2].item() == pytest.approx(expected, rel=most)
        assert alone.step(batch, loss_of)[0].item() == pytest.approx(expected, rel=most)
    for found in (few.member_state("back"), alone.member_state(0)):
        assert found["step"] == 50
        assert apart(found["model"], solo.model.state_dict()) < 10 * most


def test_dropout_continues_with_the_same_masks() -> None:
    data = batches("mlp", 12)
    whole = hydro.fuse(dropping, members("adamw", 4), engine="grouped")
    for batch in data[:6]:
        whole.step(batch, loss_of)
    state = whole.member_state(3)
    alone = hydro.fuse(dropping, engine="grouped")
    alone.add([state["settings"]], [state])
    for batch in data[6:]:
        expected = whole.step(batch, loss_of)[3].item()
        assert alone.step(batch, loss_of)[0].item() == pytest.approx(expected, rel=1e-9)


def test_a_scaler_continues_where_it_was() -> None:
    """Its scale grows after four good steps in a row, three of which are before the pause."""
    make, data = factory("mlp", torch.float32), batches("mlp", 8, dtype=torch.float32)
    scaler = hydro.LossScale(init_scale=2.0**10, growth_interval=4)
    group = hydro.fuse(
        make, [{"lr": 1e-3, "seed": i, "scaler": scaler} for i in range(2)], "sgd", engine="grouped"
    )
    for batch in data[:3]:
        group.step(batch, loss_of)
    state = group.member_state(1)
    moved = hydro.fuse(make, optimizer="sgd", engine="grouped")
    moved.add([state["settings"]], [state])
    loaded = hydro.fuse(make, optimizer="sgd", engine="grouped")
    loaded.load_state_dict(group.state_dict())
    for batch, scale in zip(data[3:], [11, 11, 11, 11, 12], strict=True):
        for one, member in ((group, 1), (moved, 0), (loaded, 1)):
            one.step(batch, loss_of)
            assert one.member_state(member)["scaler"]["scale"] == 2.0**scale


def test_a_group_is_loaded_to_the_bit(tmp_path: Any) -> None:
    data = batches("mlp", 8)
    every = members("sgd", 3)
    every[1]["schedule"] = hydro.WarmUp(steps=3, after=hydro.Cosine(steps=9))
    group = hydro.fuse(dropping, every, "sgd", engine="grouped")
    group.add([{"lr": 0.01, "seed": 9}], names=["late"])
    group.drop([0])
    for batch in data[:4]:
        group.step(batch, loss_of)
    torch.save(group.state_dict(), tmp_path / "group.pt")
    other = hydro.fuse(dropping, optimizer="sgd", engine="grouped")
    other.load_state_dict(torch.load(tmp_path / "group.pt", weights_only=True))
    assert (other.ids, other.names) == ([1, 2, 3], [None, None, "late"])
    assert other.members == group.members
    for batch in data[4:]:
        assert torch.equal(other.step(batch, loss_of), group.step(batch, loss_of))
    assert other.add([{"lr": 0.1}]) == [4]
    with pytest.raises(hydro.FuseError, match="is of a group with sgd, and this one has adamw"):
        hydro.fuse(dropping).load_state_dict(group.state_dict())


def test_an_empty_group_and_names() -> None:
    group = hydro.fuse(factory("mlp"), optimizer="adamw")
    batch = batches("mlp", 1)[0]
    assert (len(group), group.ids, group.memory_bytes()) == (0, [], 0)
    with pytest.raises(hydro.FuseError, match="no members yet"):
        group.step(batch, loss_of)
    group.add([{"lr": 1e-3}], names=["first"])
    group.step(batch, loss_of)
    assert group.engine == "separate"
    group.drop(["first"])
    with pytest.raises(hydro.FuseError, match="no members left"):
        group.step(batch, loss_of)
    assert group.add([{"lr": 1e-3}] * 2, names=["first", "second"]) == [1, 2]
    group.step(batch, loss_of)
    with pytest.raises(hydro.MemberError, match="member 3: the name 'second' is taken") as caught:
        group.add([{"lr": 1e-3}], names=["second"])
    assert caught.value.member == 3
    assert group.names == ["first", "second"]
    with pytest.raises(hydro.FuseError, match=r"without arguments.*functools\.partial"):
        hydro.fuse(lambda width: nn.Linear(width, 1))


def test_a_group_that_doubles_is_probed_again() -> None:
    group = hydro.fuse(factory("mlp", torch.float32), [{"lr": 1e-3}])
    batch = batches("mlp", 1, dtype=torch.float32)[0]
    group.step(batch, loss_of)
    alone = group.report
    group.add([{"lr": 1e-3}] * 7)
    group.step(batch, loss_of)
    assert group.report is not alone
    assert group.report is not None
    assert "8 members" in group.report.reason


class Choosy(nn.Module):
    """Has statistics in buffers, and refuses outputs that have grown too large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(16, 10).double(), nn.BatchNorm1d(16).double()

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(self.norm(x))
        if out.detach().abs().max() > 1e3:
            raise ArithmeticError("it diverged")
        return out


def test_the_member_that_raises_is_named_and_the_others_repeat_the_step() -> None:
    data = batches("mlp", 4)
    good, bad = [{"lr": 1e-3, "seed": 1}, {"lr": 1e-2, "seed": 2}], {"lr": 1e6, "seed": 3}
    group = hydro.fuse(Choosy, good, "sgd", engine="separate")
    expected = hydro.fuse(Choosy, good, "sgd", engine="separate")
    for number, batch in enumerate(data):
        if number == 1:
            group.add([bad])
        if number == 2:
            with pytest.raises(hydro.MemberError, match="member 2: ArithmeticError: it diverged") as caught:
                group.step(batch, loss_of)
            assert isinstance(caught.value.__cause__, ArithmeticError)
            assert caught.value.member == 2
            group.drop([2])
        assert torch.equal(group.step(batch, loss_of)[:2], expected.step(batch, loss_of))
    for i in range(2):
        assert apart(group.member_state(i)["model"], expected.member_state(i)["model"]) == 0


@pytest.mark.parametrize("engine", ["grouped", "separate"])
def test_too_little_memory_is_nobodys_own(engine: Any) -> None:
    scarce = False

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if scarce:
            torch.empty(10**15)
        return loss_of(model, batch)

    group = hydro.fuse(factory("mlp"), [{"lr": 1e-3}] * 2, engine=engine)
    batch = batches("mlp", 1)[0]
    group.step(batch, loss)
    scarce = True
    with pytest.raises(hydro.OutOfMemoryError, match="too little memory for a step of 2 members") as caught:
        group.step(batch, loss)
    assert not isinstance(caught.value, hydro.MemberError)
    assert group.engine == engine


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_states_of_plain_torch_say_what_they_lack(momentum: float) -> None:
    """Without momentum nothing in an optimizer's state shows that it has taken steps."""
    model = built("mlp")
    optimizer = OPTIMIZERS["sgd"](model.parameters(), lr=0.1, momentum=momentum)
    loss_of(model, batches("mlp", 1)[0]).backward()
    optimizer.step()
    group = hydro.fuse(factory("mlp"), optimizer="sgd")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with pytest.raises(hydro.MemberError, match=r"add state\['step'\]"):
        group.add([{"lr": 0.1, "momentum": momentum}], [state])
    assert len(group) == 0
    (joined,) = group.add([{"lr": 0.1, "momentum": momentum}], [{**state, "step": 1}])
    assert group.steps() == {joined: 1}


def test_a_member_sees_the_batches_that_it_would_see_alone() -> None:
    data, labels = torch.randn(20, 16, dtype=torch.float64), torch.arange(20) % 10
    group = hydro.fuse(factory("mlp"), [{"lr": 1e-3}] * 2, engine="grouped")
    alone = hydro.fuse(factory("mlp"), [{"lr": 1e-3}], engine="grouped")
    batches_of_both = hydro.EpochBatches(group, data, labels, batch_size=8, seed=3)
    own = [
        batch for epoch in range(3) for batch in hydro.EpochBatches(alone, data, labels, batch_size=8, seed=3)
    ]
    assert len(batches_of_both) == 3
    # alone never trains here, so it stays at its first batch; `of` says what comes later
    assert all(torch.equal(one[0], own[0][0]) for one in own)
    rows = torch.cat([batches_of_both.of(i)[1] for i in range(3)])
    assert sorted(rows.tolist()) == sorted(labels.tolist())
    for batch in batches_of_both:
        assert not isinstance(batch, hydro.PerMember)
        group.step(batch, loss_of)
    group.add([{"lr": 1e-3}])
    for number, batch in enumerate(batches_of_both):
        assert isinstance(batch, hydro.PerMember)
        for position, seen in enumerate((3 + number, 3 + number, number)):
            expected = hydro.EpochBatches(alone, data, labels, batch_size=8, seed=3).of(seen)
            assert all(torch.equal(a, b) for a, b in zip(batch.batches[position], expected, strict=True))
        group.step(batch, loss_of)
    assert not torch.equal(batches_of_both.order(0), batches_of_both.order(1))
    group.add([{"lr": 1e-3, "batch_size": 4}])
    with pytest.raises(
        hydro.MemberError, match="member 3: batch_size 4 gives it epochs of its own"
    ) as caught:
        next(iter(batches_of_both))
    assert caught.value.member == 3
