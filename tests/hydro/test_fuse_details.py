"""Batch sizes, padding, own batches, gradient scalers, frozen and unused parameters, surrogates, buffers."""

from typing import Any

import hydro_models
import pytest
import torch
from fuse_models import Cnn, Gpt, Mlp, Solo, apart, batches, built, factory, loss_of
from hydro_models import text
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro
from headrace_torch.hydro.fuse import checkpoint

SIZES = (8, 3, None, 5, 3)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("engine", ["grouped", "separate"])
def test_batch_sizes_by_bucket(name: str, engine: Any) -> None:
    members = [{"lr": 1e-3 * (i + 1), "seed": i, "batch_size": size} for i, size in enumerate(SIZES)]
    group = hydro.fuse(factory(name), members, engine=engine)
    alone = [Solo(built(name, i), member, "adamw") for i, member in enumerate(members)]
    for inputs, targets in batches(name, 6):
        losses = group.step((inputs, targets), loss_of)
        for i, (one, size) in enumerate(zip(alone, SIZES, strict=True)):
            assert losses[i].item() == pytest.approx(one.step((inputs[:size], targets[:size])), rel=1e-9)
    for i, one in enumerate(alone):
        assert apart(group.member_state(i)["model"], one.model.state_dict()) < 1e-9


@pytest.mark.parametrize("engine", ["grouped", "vmap", "separate"])
def test_padded_batches(engine: Any) -> None:
    def each(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    members = [{"lr": 1e-3 * (i + 1), "seed": i, "batch_size": size} for i, size in enumerate(SIZES)]
    group = hydro.fuse(factory("mlp"), members, engine=engine, batching="pad")
    alone = [Solo(built("mlp", i), member, "adamw") for i, member in enumerate(members)]
    for inputs, targets in batches("mlp", 6):
        inputs[3:] *= 1e30  # padding of two members overflows none of their values
        losses = group.step((inputs, targets), each)
        for i, size in ((1, 3), (4, 3)):
            assert losses[i].item() == pytest.approx(alone[i].step((inputs[:size], targets[:size])), rel=1e-9)
    for i in (1, 4):
        assert apart(group.member_state(i)["model"], alone[i].model.state_dict()) < 1e-9


def test_every_member_may_have_its_own_batch() -> None:
    members = [{"lr": 1e-3, "seed": i} for i in range(3)]
    group = hydro.fuse(factory("cnn"), members, engine="grouped")
    alone = [Solo(built("cnn", i), member, "adamw") for i, member in enumerate(members)]
    data = batches("cnn", 12)
    for turn in range(4):
        own = [data[turn], data[4 + turn], tuple(part[:5] for part in data[8 + turn])]
        losses = group.step(hydro.PerMember(own), loss_of)
        for i, one in enumerate(alone):
            assert losses[i].item() == pytest.approx(one.step(own[i]), rel=1e-9)


@pytest.mark.parametrize("ignored", [-100, 2])
@pytest.mark.parametrize("own", [False, True], ids=["one batch", "own batches"])
def test_ignored_targets_do_not_count(own: bool, ignored: int) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], ignore_index=ignored)

    members = [{"lr": 1e-3, "seed": i} for i in range(3)]
    group = hydro.fuse(factory("mlp"), members, "sgd", engine="grouped")
    alone = [Solo(built("mlp", i), member, "sgd") for i, member in enumerate(members)]
    data = batches("mlp", 3)
    for count, (_, targets) in enumerate(data, start=1):
        targets[targets == ignored] = 0
        targets[:count] = ignored
    given = data if own else data[-1:] * 3
    for _ in range(2):
        losses = group.step(hydro.PerMember(given) if own else data[-1], loss)
        expected = [one.step(batch, loss) for one, batch in zip(alone, given, strict=True)]
        assert losses.tolist() == pytest.approx(expected, rel=1e-9)
    for i, one in enumerate(alone):
        assert apart(group.member_state(i)["model"], one.model.state_dict()) < 1e-9


def test_scalers_are_those_of_torch_per_member() -> None:
    settings = [
        hydro.LossScale(init_scale=2.0**127, growth_interval=3),
        hydro.LossScale(init_scale=2.0**10, growth_factor=4.0, growth_interval=2),
        hydro.LossScale(init_scale=2.0**126, backoff_factor=0.25, growth_interval=2),
    ]

    def steep(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 64 * loss_of(model, batch)  # its gradient overflows at such scales

    members: list[dict[str, Any]] = [{"lr": 5e-4, "seed": i, "scaler": one} for i, one in enumerate(settings)]
    group = hydro.fuse(
        factory("mlp", torch.float32), [*members, {"lr": 5e-4, "seed": 3}], "sgd", engine="grouped"
    )
    alone, scalers = [], []
    for i, one in enumerate(settings):
        alone.append(Solo(built("mlp", i, torch.float32), members[i], "sgd"))
        scalers.append(
            torch.amp.GradScaler(
                "cpu",
                init_scale=one.init_scale,
                growth_factor=one.growth_factor,
                backoff_factor=one.backoff_factor,
                growth_interval=one.growth_interval,
            )
        )
    plain = Solo(built("mlp", 3, torch.float32), {"lr": 5e-4}, "sgd")
    skipped = 0
    for batch in batches("mlp", 12, dtype=torch.float32):
        group.step(batch, steep)
        plain.step(batch, steep)
        for one, scaler in zip(alone, scalers, strict=True):
            one.optimizer.zero_grad()
            scaler.scale(steep(one.model, batch)).backward()
            scaler.step(one.optimizer)
            before = scaler.get_scale()
            scaler.update()
            skipped += scaler.get_scale() < before
    assert skipped >= 2
    for i, (one, scaler) in enumerate(zip(alone, scalers, strict=True)):
        state = group.member_state(i)
        assert state["scaler"] == scaler.state_dict()
        torch.amp.GradScaler("cpu").load_state_dict(state["scaler"])
        assert apart(state["model"], one.model.state_dict()) < 1e-5
        assert state["seen"] == 12
    assert group.steps()[0] < 12 == group.steps()[3]
    assert apart(group.member_state(3)["model"], plain.model.state_dict()) < 1e-5


class Partly(nn.Module):
    """A frozen layer, a layer that no loss depends on, and buffers of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.used, self.idle = nn.Linear(16, 16), nn.Linear(16, 10), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.linspace(0, 1, 16))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.frozen(x) + self.shift)
        self.calls += 1
        self.average = 0.9 * self.average + 0.1 * h.detach().mean(0)  # reassigned, as users do
        return self.used(h - self.average)


@pytest.mark.parametrize("engine", ["grouped", "vmap", "separate"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_frozen_and_unused_parameters_and_buffers(engine: Any, optimizer: Any) -> None:
    def make() -> nn.Module:
        return Partly().double()

    members = [{"lr": 0.01 * (i + 1), "seed": i, "weight_decay": 0.1} for i in range(3)]
    group = hydro.fuse(make, members, optimizer, engine=engine)
    alone = []
    for i, member in enumerate(members):
        torch.manual_seed(i)
        alone.append(Solo(make(), member, optimizer))
    for batch in batches("mlp", 6):
        group.step(batch, loss_of)
        for one in alone:
            one.step(batch)
    for i, one in enumerate(alone):
        assert apart(group.member_state(i)["model"], one.model.state_dict()) < 1e-9
        assert group.member_state(i)["model"]["calls"] == 6


class Drawn(nn.Module):
    """A buffer that its seed initializes and no step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.shift)


@pytest.mark.parametrize("seeds", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_every_member_has_its_own_buffers(seeds: tuple[int, ...]) -> None:
    def make() -> nn.Module:
        return Drawn().double()

    members = [{"lr": 0.01 * (i + 1), "seed": seed} for i, seed in enumerate(seeds)]
    group = hydro.fuse(make, members, engine="grouped")
    alone = []
    for member in members:
        torch.manual_seed(int(member["seed"]))
        alone.append(Solo(make(), member, "adamw"))
    for batch in batches("mlp", 2):
        assert group.step(batch, loss_of).tolist() == pytest.approx(
            [one.step(batch) for one in alone], rel=1e-9
        )
    for i, one in enumerate(alone):
        assert apart(group.member_state(i)["model"], one.model.state_dict()) < 1e-9


class DoubleGpt(hydro_models.GPT):
    """In float64, where only rounding differs."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__(width, depth)
        self.double()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_surrogate_trains_under_its_parametrization(optimizer: str) -> None:
    surrogate = hydro.shrink(DoubleGpt, scale=2, inputs=text())
    tokens = text()
    batch = (tokens, tokens.roll(-1, 1))
    # AdamW divides the gradients of key biases, which are pure rounding (1e-16), by eps: with the usual 1e-8 the result
    # is 1e-9, as much as the bound.
    further = {"eps": 1e-6} if optimizer == "adamw" else {}
    members = [
        {"lr": 1e-2, "seed": 1, "weight_decay": 0.1, **further},
        {"lr": 3e-2, "seed": 2, "weight_decay": 0.01, **further},
    ]
    group = hydro.fuse(surrogate, members, optimizer, engine="grouped", gate=False)
    alone = []
    for member in members:
        model = surrogate.build(int(member["seed"]))
        settings = {name: value for name, value in member.items() if name != "seed"}
        alone.append((model, surrogate.optimizer(model, optimizer, **settings)))
    rates = {pg["lr"] for pg in alone[0][1].param_groups}
    assert len(rates) > 1  # otherwise the test would say nothing about multipliers
    for _ in range(10):
        losses = group.step(batch, loss_of)
        for i, (model, one) in enumerate(alone):
            one.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            one.step()
            assert losses[i].item() == pytest.approx(loss.item(), rel=1e-9)
    for i, (model, one) in enumerate(alone):
        assert apart(group.member_state(i)["model"], model.state_dict()) < 1e-9
        model.load_state_dict(group.member_state(i)["model"])
        one.load_state_dict(group.member_state(i)["optimizer"])  # the same parameter groups


@pytest.mark.parametrize(
    ("optimizer", "further"),
    [("adamw", {}), ("adam", {"betas": (0.8, 0.99)}), ("sgd", {"momentum": 0.9, "nesterov": True})],
)
def test_a_state_numbers_parameters_as_torch_does_and_makes_no_optimizer(
    optimizer: str, further: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    surrogate = hydro.shrink(DoubleGpt, scale=2, inputs=text())
    tokens = text()
    batch = (tokens, tokens.roll(-1, 1))
    settings = {"lr": 1e-2, "seed": 1, "weight_decay": 0.1, **further}
    schedule = hydro.Cosine(steps=9)
    group = hydro.fuse(
        surrogate, [{**settings, "schedule": schedule}], optimizer, engine="grouped", gate=False
    )
    model = surrogate.build(1)
    alone = surrogate.optimizer(model, optimizer, lr=1e-2, weight_decay=0.1, **further)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(alone, T_max=9)
    for _ in range(3):
        group.step(batch, loss_of)
        alone.zero_grad()
        loss_of(model, batch).backward()
        alone.step()
        cosine.step()
    expected = alone.state_dict()
    assert len(expected["param_groups"]) > 1
    checkpoint._defaults(optimizer)  # torch's own settings, read once in a process

    def made(*_: object, **__: object) -> None:
        raise AssertionError("an optimizer was made")

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Optimizer, "__init__", made)
        state = group.member_state(0)
        group.add([state["settings"]], [state])
        again = group.member_state(1)
    found = state["optimizer"]
    for one, other in zip(found["param_groups"], expected["param_groups"], strict=True):
        assert one == {**other, "lr": pytest.approx(other["lr"])}
    assert found["state"].keys() == expected["state"].keys()
    for number, moments in expected["state"].items():
        assert found["state"][number].keys() == moments.keys()
        assert apart(found["state"][number], moments) < 1e-9
        assert apart(again["optimizer"]["state"][number], found["state"][number]) == 0
    assert again["optimizer"]["param_groups"] == found["param_groups"]
    assert (
        group.member_optimizer(0, group.member_model(0)).state_dict()["param_groups"] == found["param_groups"]
    )


def test_a_module_is_every_members_beginning() -> None:
    model = Gpt()
    group = hydro.fuse(model, [{"lr": 1e-3}, {"lr": 1e-2, "seed": 5}], workers=0)
    for i in range(2):
        assert apart(group.member_state(i)["model"], model.state_dict()) == 0
    before = {name: value.clone() for name, value in model.state_dict().items()}
    group.step(batches("gpt", 1)[0], loss_of)
    assert apart(model.state_dict(), before) == 0  # the user's own module is not trained
    tied = group.member_model(1)
    assert tied.head.weight is tied.embed.weight


def test_seeds_give_each_member_its_own_beginning_and_leave_the_generator() -> None:
    state = torch.get_rng_state()
    group = hydro.fuse(Mlp, [{"lr": 1e-3, "seed": 1}, {"lr": 1e-3, "seed": 2}, {"lr": 1e-2, "seed": 1}])
    assert torch.equal(torch.get_rng_state(), state)
    first, second, third = (group.member_state(i)["model"]["head.weight"] for i in range(3))
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


def test_evaluation_mode_is_kept() -> None:
    model = Cnn()
    model.norm.eval()
    group = hydro.fuse(model, [{"lr": 1e-3}] * 2, engine="grouped")
    group.step(batches("cnn", 1, dtype=torch.float32)[0], loss_of)
    state = group.member_state(0)["model"]
    assert state["norm.num_batches_tracked"] == 0
    assert state["norm2.num_batches_tracked"] == 1
