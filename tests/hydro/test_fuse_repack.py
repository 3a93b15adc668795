"""Members leave, join and come back: survivors keep their bits, joiners their own clocks, checkpoints are plain
torch."""

from typing import Any

import pytest
import torch
from fuse_models import OPTIMIZERS, Solo, apart, batches, built, factory, loss_of, mixed_members, scheduler_of
from torch import nn

from headrace_torch import hydro

SINGLE = torch.float32


def bits(group: hydro.Group, member: int) -> list[torch.Tensor]:
    """The whole state of a member: parameters, buffers, moments."""
    state = group.member_state(member)
    moments = [value for entry in state["optimizer"]["state"].values() for value in entry.values()]
    return [*state["model"].values(), *moments]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("name", "optimizer"), [("mlp", "sgd"), ("cnn", "adamw"), ("resnet", "sgd"), ("gpt", "adam")]
)
def test_survivors_do_not_change_by_a_bit(name: str, optimizer: str) -> None:
    members = mixed_members(optimizer, steps=60)
    make = factory(name, SINGLE)
    stays = hydro.fuse(make, members, optimizer, engine="grouped")
    packed = hydro.fuse(make, members, optimizer, engine="grouped")
    for number, batch in enumerate(batches(name, 60, dtype=SINGLE)):
        if number == 10:
            packed.drop([0, 3])
            assert packed.ids == [1, 2, 4]
        if number == 40:
            packed.drop([4, 1])
        everyone, some = stays.step(batch, loss_of), packed.step(batch, loss_of)
        assert some.tolist() == everyone[packed.ids].tolist(), number
    assert packed.ids == [2]
    for ours, theirs in zip(bits(packed, 2), bits(stays, 2), strict=True):
        assert torch.equal(ours, theirs)


def test_memory_goes_with_the_dropped() -> None:
    group = hydro.fuse(factory("mlp"), [{"lr": 1e-3}] * 8)
    before = group.memory_bytes()
    group.drop(range(2, 8))
    assert group.memory_bytes() * 4 == before


@pytest.mark.cases(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_late_joiner_equals_its_solo_run(optimizer: str) -> None:
    members = mixed_members(optimizer)
    group = hydro.fuse(factory("gpt"), members[:2], optimizer, engine="grouped")
    data = batches("gpt", 30)
    for batch in data[:15]:
        group.step(batch, loss_of)
    joined = group.add(members[2:])
    assert joined == [2, 3, 4]
    alone = {i: Solo(built("gpt", members[i]["seed"]), members[i], optimizer) for i in joined}
    for batch in data[15:]:
        losses = group.step(batch, loss_of)
        for i, one in alone.items():
            assert losses[i].item() == pytest.approx(one.step(batch), rel=1e-9)
    for i, one in alone.items():
        assert apart(group.member_state(i)["model"], one.model.state_dict()) < 1e-9
    assert group.steps() == {0: 30, 1: 30, 2: 15, 3: 15, 4: 15}


def test_ids_are_never_used_again() -> None:
    group = hydro.fuse(factory("mlp"), [{"lr": 1e-3}] * 3)
    group.drop([2])
    assert group.add([{"lr": 1e-3}]) == [3]
    assert group.ids == [0, 1, 3]
    with pytest.raises(hydro.FuseError, match=r"member 2 is not in the group; its members are \[0, 1, 3\]"):
        group.drop([2])
    group.drop([0, 1, 3])
    with pytest.raises(hydro.FuseError, match="no members left"):
        group.step(batches("mlp", 1)[0], loss_of)
    group.add([{"lr": 1e-3}])
    group.step(batches("mlp", 1)[0], loss_of)


@pytest.mark.parametrize(("name", "optimizer"), [("gpt", "adamw"), ("cnn", "sgd"), ("mlp", "adam")])
def test_a_members_state_continues_in_plain_torch(name: str, optimizer: str) -> None:
    members = mixed_members(optimizer)
    group = hydro.fuse(factory(name), members, optimizer, engine="grouped")
    data = batches(name, 24)
    for batch in data[:12]:
        group.step(batch, loss_of)
    states = [group.member_state(i) for i in range(5)]
    for batch in data[12:]:
        group.step(batch, loss_of)
    for i, (member, state) in enumerate(zip(members, states, strict=True)):
        model = built(name, seed=99)
        assert model.load_state_dict(state["model"]).missing_keys == []
        optimizer_of_torch = OPTIMIZERS[optimizer](model.parameters(), lr=1.0)
        optimizer_of_torch.load_state_dict(state["optimizer"])
        for batch in data[12:]:
            setting = hydro.Member(**member).setting(group.steps()[i] - 24 + state["step"])
            for pg in optimizer_of_torch.param_groups:
                pg["lr"] = setting.lr
                if setting.momentum is not None and optimizer == "sgd":
                    pg["momentum"] = setting.momentum if member.get("momentum") else 0.0
                elif setting.momentum is not None:
                    pg["betas"] = (setting.momentum, pg["betas"][1])
            state["step"] += 1
            optimizer_of_torch.zero_grad()
            loss_of(model, batch).backward()
            if "clip" in member:
                nn.utils.clip_grad_norm_(model.parameters(), member["clip"])
            optimizer_of_torch.step()
        assert apart(group.member_state(i)["model"], model.state_dict()) < 1e-6


def test_a_scheduler_of_torch_continues_from_a_members_state() -> None:
    member: dict[str, Any] = {"lr": 0.1, "schedule": hydro.Cosine(steps=20)}
    group = hydro.fuse(factory("mlp"), [member], "sgd")
    data = batches("mlp", 20)
    for batch in data[:8]:
        group.step(batch, loss_of)
    model = group.member_model(0)
    optimizer = group.member_optimizer(0, model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, last_epoch=group.steps()[0] - 1)
    for number, batch in enumerate(data[8:], 8):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(
            hydro.Member(**member).setting(number).lr, rel=1e-9
        )
        group.step(batch, loss_of)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        scheduler.step()
    assert apart(group.member_state(0)["model"], model.state_dict()) < 1e-9


def test_a_state_joins_another_group_to_the_bit() -> None:
    members = mixed_members("adamw")
    make = factory("cnn", SINGLE)
    group = hydro.fuse(make, members, engine="grouped")
    data = batches("cnn", 12, dtype=SINGLE)
    for batch in data[:6]:
        group.step(batch, loss_of)
    other = hydro.fuse(make, [{"lr": 1e-3, "seed": 8}], engine="grouped")
    other.step(data[0], loss_of)
    joined = other.add([members[3], members[1]], [group.member_state(3), group.member_state(1)])
    for batch in data[6:]:
        group.step(batch, loss_of)
        other.step(batch, loss_of)
    for there, here in zip(joined, (3, 1), strict=True):
        for ours, theirs in zip(bits(other, there), bits(group, here), strict=True):
            assert torch.equal(ours, theirs)


def test_a_state_of_another_model_is_refused() -> None:
    group = hydro.fuse(factory("mlp"), [{"lr": 1e-3}])
    other = hydro.fuse(factory("cnn"), [{"lr": 1e-3}])
    with pytest.raises(hydro.FuseError, match=r"body\.0\.weight"):
        group.add([{"lr": 1e-3}], [other.member_state(0)])


def test_repack_probes_again() -> None:
    group = hydro.fuse(factory("mlp"), [{"lr": 1e-3}] * 4, workers=0)
    batch = batches("mlp", 1)[0]
    group.step(batch, loss_of)
    group.drop([1, 2, 3])
    engine = group.engine
    group.step(batch, loss_of)
    assert group.engine == engine
    group.repack()
    assert group.engine is None
    group.step(batch, loss_of)
    assert group.engine == "separate"  # a single member has no other one to be fused with


@pytest.mark.parametrize(
    "schedule", [member["schedule"] for member in mixed_members("sgd") if member["schedule"]]
)
@pytest.mark.filterwarnings("ignore")  # torch's SequentialLR warns about a call of its own
def test_schedules_equal_torchs(schedule: Any) -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.3, momentum=0.9)
    scheduler = scheduler_of(schedule, optimizer, 0.3)
    assert scheduler is not None
    for step in range(50):
        ours = schedule.setting(step, 0.3)
        assert ours.lr == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        if ours.momentum is not None:
            assert ours.momentum == pytest.approx(optimizer.param_groups[0]["momentum"], rel=1e-9)
        optimizer.step()
        if step < 49:
            scheduler.step()
