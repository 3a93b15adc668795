"""State that a loss or a model keeps in Python belongs to each member, once per step; unfrozen weights are refused."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro
from headrace_torch.hydro.fuse.obstacles import Need, why_not
from headrace_torch.hydro.fuse.places import Kind
from headrace_torch.hydro.fuse.surroundings import Surroundings

ENGINES = ["separate", "grouped", "vmap"]
X = torch.linspace(-1, 1, 40).reshape(10, 4)


class Annealed:
    """A loss whose weight grows for sixty steps, like the Kullback-Leibler term in a VAE."""

    def __init__(self) -> None:
        self.calls = 0
        self.betas: list[float] = []

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        self.betas.append(min(1.0, self.calls / 60))
        return model(batch).square().mean() * self.betas[-1]


class Late(nn.Module):
    """A model that counts its calls, and changes at the eighth."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * (1.0 if self.calls < 8 else 0.5)


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def alone(make: Callable[[], nn.Module], loss: Any, batches: list[Tensor], seed: int = 0) -> list[float]:
    """Losses of a single member with a rate of 0.01 under torch.optim."""
    torch.manual_seed(seed)
    model = make()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for batch in batches:
        optimizer.zero_grad()
        out = loss(model, batch)
        out.backward()
        optimizer.step()
        losses.append(float(out.detach()))
    return losses


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_counts_steps_and_not_members(engine: Any) -> None:
    group = hydro.fuse(linear, [{"lr": 0.01, "seed": seed} for seed in range(4)], engine=engine)
    loss = Annealed()
    found = [group.step(X, loss)[2].item() for _ in range(30)]
    assert (loss.calls, len(loss.betas), loss.betas[-1]) == (30, 30, 0.5)
    assert found == pytest.approx(alone(linear, Annealed(), [X] * 30, seed=2), rel=1e-5)


@pytest.mark.parametrize("make", [linear, Late], ids=["the loss counts", "the model counts too"])
@pytest.mark.parametrize("engine", ENGINES)
def test_two_batch_sizes_are_one_step(engine: Any, make: Callable[[], nn.Module]) -> None:
    group = hydro.fuse(make, [{"lr": 0.01, "batch_size": size} for size in (4, 10)], engine=engine)
    loss = Annealed()
    found = torch.stack([group.step(X, loss) for _ in range(12)], 1)
    assert loss.calls == 12
    for losses, size in zip(found, (4, 10), strict=True):
        assert losses.tolist() == pytest.approx(alone(make, Annealed(), [X[:size]] * 12), rel=1e-5)


@pytest.mark.parametrize("make", [linear, Late], ids=["the loss counts", "the model counts too"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_late_joiner_has_its_own_count(engine: Any, make: Callable[[], nn.Module]) -> None:
    """With `EpochBatches`, whose last batch is smaller, the members make several calls per step."""
    group = hydro.fuse(make, [{"lr": 0.01}], engine=engine)
    loss = Annealed()
    batches = hydro.EpochBatches(group, X, batch_size=4)
    for batch in [*batches, *batches]:
        group.step(batch, loss)
    group.add([{"lr": 0.01, "seed": 1}])
    found = [group.step(batch, loss)[1].item() for _ in range(4) for batch in batches]
    expected = alone(make, Annealed(), [batches.of(seen) for seen in range(12)], seed=1)
    assert found == pytest.approx(expected, rel=1e-5)
    assert loss.calls == 18  # the user sees the first member's


def test_members_with_the_same_state_share_a_fused_pass() -> None:
    """A cache is filled at a member's first step, and from then on it equals everybody else's."""
    cache: dict[Any, Tensor] = {}
    passes = 0

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if batch.shape not in cache:
            cache[batch.shape] = torch.ones(3)
        return (model(batch) * cache[batch.shape]).square().mean()

    group = hydro.fuse(linear, [{"lr": 0.01}, {"lr": 0.02}], engine="grouped")
    group.step(X, loss)
    group.add([{"lr": 0.01}])
    engine = group._running.engine
    run = engine.run

    def counted(*args: Any) -> Any:
        nonlocal passes
        passes += 1
        return run(*args)

    engine.run = counted
    group.step(X, loss)
    assert passes == 2
    group.step(X, loss)
    assert passes == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_user_changes_between_steps_holds_for_all(engine: Any) -> None:
    class Scaled(Annealed):
        scale = 1.0

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            return super().__call__(model, batch) * self.scale

    group = hydro.fuse(linear, [{"lr": 0.0}, {"lr": 0.0}], engine=engine)
    loss = Scaled()
    first = group.step(X, loss)
    loss.scale = 3.0
    loss.betas.clear()
    torch.testing.assert_close(group.step(X, loss), first * 6)
    assert (loss.calls, loss.betas) == (2, [2 / 60])


def test_a_step_that_fails_leaves_counts_as_they_were() -> None:
    loss = Annealed()

    def picky(model: nn.Module, batch: Tensor) -> Tensor:
        if loss.calls == 1 and bool(model.weight.detach()[0, 0] > 5):
            raise ArithmeticError("too large")
        return loss(model, batch)

    group = hydro.fuse(linear, [{"lr": 0.01, "seed": 1}, {"lr": 50.0, "seed": 2}], "sgd", engine="separate")
    group.step(X, picky)
    group._states.rows[1].fill_(9.0)
    with pytest.raises(hydro.MemberError, match="member 1: ArithmeticError") as caught:
        group.step(X, picky)
    assert (loss.calls, loss.betas) == (1, [1 / 60])
    group.drop([caught.value.member or 0])
    group.step(X, picky)
    assert loss.calls == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_list_that_records_refuses_nobody(engine: Any) -> None:
    told: list[tuple[int, ...]] = []

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        told.append(tuple(batch.shape))
        return mean_square(model, batch)

    group = hydro.fuse(linear, [{"lr": 0.01}], engine=engine)
    group.step(X, loss)
    group.add([{"lr": 0.01}, {"lr": 0.02}], [group.member_state(0)] * 2)
    group.step(X, loss)
    assert len(told) == 2


@pytest.mark.full
def test_a_pool_refuses_a_loss_that_remembers() -> None:
    """Workers get a copy of the loss in each step, so its count would never advance."""
    with (
        hydro.fuse(linear, [{"lr": 0.01}], engine="pool", workers=1) as group,
        pytest.raises(hydro.FusionGapError, match=r"a call changes loss\.calls"),
    ):
        group.step(X, Annealed())
    assert why_not("pool", {Need.RECORD: "x"}) == "x"


def ids() -> Iterator[int]:
    for number in range(100):  # noqa: UP028  a generator is the point
        yield number


@pytest.mark.parametrize(
    "made", [itertools.count, ids, lambda: iter([1, 2, 3, 4] * 30)], ids=["count", "generator", "list"]
)
@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_an_iterator_is_refused_by_name(made: Callable[[], Iterator[int]], engine: Any) -> None:
    numbers = made()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return mean_square(model, batch) * (1.0 if next(numbers) < 30 else 0.5)

    with pytest.raises(
        hydro.FuseError, match=r"a call advances variable numbers, an iterator.*self\.calls \+= 1"
    ):
        hydro.fuse(linear, [{"lr": 0.01}, {"lr": 0.02}], engine=engine).step(X, loss)


def test_another_loss_is_looked_at() -> None:
    group = hydro.fuse(linear, [{"lr": 0.01, "seed": one} for one in range(3)], engine="separate")
    group.step(X, mean_square)
    loss = Annealed()
    group.step(X, loss)
    group.step(X, loss)
    assert loss.calls == 2


class Thawing(nn.Module):
    """Sets requires_grad of its first weight in one of its calls."""

    def __init__(self, at: int, *, thaws: bool, frozen: bool) -> None:
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), 0
        self.at, self.thaws = at, thaws
        self.net[0].weight.requires_grad = not frozen

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            self.net[0].weight.requires_grad = self.thaws
        return self.net(x)


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_parameter_without_a_row_is_refused_when_it_thaws(engine: Any, at: int) -> None:
    group = hydro.fuse(
        lambda: Thawing(at, thaws=True, frozen=True), [{"lr": 0.01}, {"lr": 0.02}], engine=engine
    )
    with pytest.raises(hydro.FuseError) as caught:
        [group.step(X, mean_square) for _ in range(at)]
    # A fused engine requested by name may be refused earlier, because the count affects the next call.
    assert "unfreezes parameter net.0.weight" in str(caught.value) or "attribute calls" in str(caught.value)
    assert engine in ("grouped", "vmap") or "unfreezes parameter net.0.weight" in str(caught.value)


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_parameter_that_freezes_later_rests_or_is_refused_by_name(engine: Any, at: int) -> None:
    def make() -> nn.Module:
        return Thawing(at, thaws=False, frozen=False)

    group = hydro.fuse(make, [{"lr": 0.01}, {"lr": 0.01, "seed": 1}], engine=engine)
    try:
        found = [group.step(X, mean_square)[1].item() for _ in range(7)]
    except hydro.FusionGapError as error:
        assert engine != "separate"
        assert "net.0.weight" in str(error) or "attribute calls" in str(error)  # noqa: PT017  either is right
    else:
        assert found == pytest.approx(alone(make, mean_square, [X] * 7, seed=1), rel=1e-5)


def test_a_change_is_named_and_sorted() -> None:
    loss = Annealed()
    surroundings = Surroundings([("loss", loss)])
    loss(linear(), X)
    assert [(one.path, one.kind) for one in surroundings.changes()] == [
        ("loss.calls", Kind.NUMBER),
        ("loss.betas", Kind.RECORD),
    ]
    surroundings.restore()
    assert (loss.calls, loss.betas) == (0, [])


def test_members_count_for_themselves_where_what_they_keep_differs() -> None:
    """A baseline of each member's own losses so far."""

    class Baseline:
        def __init__(self) -> None:
            self.mean = 0.0

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            loss = functional.relu(model(batch)).sum()
            self.mean = 0.9 * self.mean + 0.1 * float(loss.detach())
            return loss * (1 + self.mean)

    group = hydro.fuse(linear, [{"lr": 0.01, "seed": seed} for seed in range(3)], "adamw")
    loss = Baseline()
    found = torch.stack([group.step(X, loss) for _ in range(6)], 1)
    for seed, losses in enumerate(found):
        assert losses.tolist() == pytest.approx(alone(linear, Baseline(), [X] * 6, seed=seed), rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_keeps_its_model_trains_it(engine: Any) -> None:
    """What belongs to members is not restored with the loss's state."""

    class Keeps(Annealed):
        model: nn.Module | None = None

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            self.model = model
            return super().__call__(model, batch)

    group = hydro.fuse(linear, [{"lr": 0.01, "seed": seed} for seed in range(2)], engine=engine)
    loss = Keeps()
    found = [group.step(X, loss)[1].item() for _ in range(8)]
    assert found == pytest.approx(alone(linear, Annealed(), [X] * 8, seed=1), rel=1e-5)


def test_a_loss_may_freeze_a_parameter() -> None:
    class Freezes(Annealed):
        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            if self.calls == 4:
                model.weight.requires_grad = False
            return super().__call__(model, batch)

    group = hydro.fuse(linear, [{"lr": 0.01, "seed": seed} for seed in range(2)], engine="separate")
    loss = Freezes()
    found = [group.step(X, loss)[1].item() for _ in range(8)]
    assert found == pytest.approx(alone(linear, Freezes(), [X] * 8, seed=1), rel=1e-5)


def test_a_model_with_an_iterator_runs_separately() -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.ids = nn.Linear(4, 3), itertools.count()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * (1.0 if next(self.ids) < 4 else 0.5)

    with pytest.raises(hydro.FusionGapError, match="a step changes attribute ids"):
        hydro.fuse(Numbers, [{"lr": 0.01}], engine="vmap").step(X, mean_square)
    group = hydro.fuse(Numbers, [{"lr": 0.01}, {"lr": 0.01}])
    found = [group.step(X, mean_square)[1].item() for _ in range(6)]
    assert group.engine == "separate"
    assert found == pytest.approx(alone(Numbers, mean_square, [X] * 6), rel=1e-5)


def test_a_dict_of_a_class_of_its_own_is_read_as_it_is_stored() -> None:
    """Transformers has one, `ACT2FN`, which creates its items on access."""

    class Makes(OrderedDict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return super().__getitem__(name)()

    held = Makes(relu=nn.ReLU)
    surroundings = Surroundings([("held", held)])
    assert surroundings.changes() == []
    held["tanh"] = nn.Tanh
    surroundings.restore()
    assert list(held) == ["relu"]
    assert isinstance(held["relu"], nn.ReLU)
