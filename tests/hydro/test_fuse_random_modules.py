"""Small random modules: a group equals the same module under torch.optim, or refuses it; it never differs
silently.

A module is a row of pieces, each of which does something that users' modules do: layers, branches on data and on
counts, shared weights, lists, hooks, in-place operations, buffers, attributes, closures. `make yardstick` draws
2,000 modules from each of four seeds (HEADRACE_MODULES, HEADRACE_MODULES_SEED) and prints the outcomes.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from random_modules import KINDS, LOSSES, WIDTH, Loss, Whole
from tiers import drawn
from torch import Tensor, nn

from headrace_torch import hydro

CASES = int(os.environ.get("HEADRACE_MODULES", drawn(first=10, full=25)))
SEED = int(os.environ.get("HEADRACE_MODULES_SEED", "0"))
ROWS, STEPS = 5, 4
TELL_EVERY = 250  # cases
OUTCOMES: Counter[str] = Counter()


def double(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A factory of modules in float64, as a user would write it."""

    def made() -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return make()
        finally:
            torch.set_default_dtype(before)

    return made


def batches(given: int) -> list[tuple[Tensor, Tensor]]:
    """Two batches, in turn."""
    generator = torch.Generator().manual_seed(given)
    two = [
        (
            torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
            torch.randint(3, (ROWS,), generator=generator),
        )
        for _ in range(2)
    ]
    return [two[step % 2] for step in range(STEPS)]


def alone(
    make: Callable[[], nn.Module], member: dict[str, Any], optimizer: str, loss: str, data: int
) -> tuple[list[float], dict[str, Tensor]]:
    """Plain torch, without anything of Hydro."""
    torch.manual_seed(member["seed"])
    model, loss_fn = make(), Loss(loss)
    settings = {key: value for key, value in member.items() if key not in ("seed", "clip")}
    chosen = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](
        model.parameters(), **settings
    )
    losses = []
    for batch in batches(data):
        chosen.zero_grad()
        out = loss_fn(model, batch)
        out.backward()
        if "clip" in member:
            nn.utils.clip_grad_norm_(model.parameters(), member["clip"])
        chosen.step()
        losses.append(float(out.detach()))
    return losses, {name: one.detach().clone() for name, one in model.state_dict().items()}


def apart(one: Tensor, two: Tensor) -> float:
    """The greatest difference, relative to the largest number; infinite if only one has a NaN."""
    a, b = one.to(torch.float64), two.to(torch.float64)
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    return float((a - b).nan_to_num().abs().max() / a.nan_to_num().abs().max().clamp_min(1e-30))


def check(
    kinds: tuple[str, ...],
    loss: str,
    optimizer: str,
    engine: str,
    *,
    as_module: bool,
    clip: bool,
    data: int,
    size: int = 2,
) -> None:
    """Trains some members in a group, and each alone; fails if they differ without a message."""
    make = double(lambda: Whole(kinds))
    members: list[dict[str, Any]] = [
        {"lr": rate, "seed": 0 if as_module else seed}
        for seed, rate in enumerate((0.03, 0.01, 0.02)[:size], start=1)
    ]
    members[0]["weight_decay"] = 0.1
    if clip:
        members[1]["clip"] = 0.5
    if optimizer == "sgd":
        members[0] |= {"momentum": 0.9}
    else:  # a bias before a batch norm has a gradient of pure rounding, which Adam divides by its size
        members = [{**one, "eps": 1e-4} for one in members]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            source: Any = make
            if as_module:
                torch.manual_seed(0)
                source = make()
            group = hydro.fuse(source, members, optimizer, engine=engine)
            loss_fn = Loss(loss)
            losses = [group.step(batch, loss_fn) for batch in batches(data)]
        except hydro.HydroError as error:
            OUTCOMES[f"refused: {str(error)[:60]}"] += 1
            return
        except Exception as error:  # noqa: BLE001  what torch itself refuses
            with pytest.raises(type(error)):
                [alone(make, member, optimizer, loss, data) for member in members]
            OUTCOMES["torch raises too"] += 1
            return
        expected = [alone(make, member, optimizer, loss, data) for member in members]
        # A fused pass may keep what no state can contain. A warning says so.
        states = [group.member_state(i)["model"] for i in group.ids]
    OUTCOMES[str(group.engine)] += 1
    found = torch.stack(losses)
    for i, (numbers, tensors) in enumerate(expected):
        assert apart(torch.tensor(numbers, dtype=torch.float64), found[:, i]) <= 1e-7, group.engine
        # Relative to the member's largest number: a bias before a batch norm is rounding, scaled up by Adam.
        names = [name for name, value in tensors.items() if value.is_floating_point()]
        ours, theirs = (torch.cat([one[name].flatten() for name in names]) for one in (tensors, states[i]))
        assert apart(ours, theirs) <= 1e-7


@hypothesis_seed(SEED)
@settings(
    max_examples=CASES,
    database=None,
    suppress_health_check=list(HealthCheck),
    derandomize=False,
)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple),
    loss=st.sampled_from(LOSSES),
    optimizer=st.sampled_from(["adamw", "adam", "sgd"]),
    engine=st.sampled_from(["auto", "auto", "grouped", "vmap", "separate"]),
    as_module=st.booleans(),
    clip=st.booleans(),
    data=st.integers(0, 3),
    size=st.integers(2, 3),
)
def test_a_random_module_equals_torch_optim_or_is_refused(
    kinds: tuple[str, ...],
    loss: str,
    optimizer: str,
    engine: str,
    as_module: bool,
    clip: bool,
    data: int,
    size: int,
) -> None:
    check(kinds, loss, optimizer, engine, as_module=as_module, clip=clip, data=data, size=size)
    if (cases := OUTCOMES.total()) % TELL_EVERY == 0:
        told = ", ".join(f"{number} {what}" for what, number in OUTCOMES.most_common())
        print(f"seed {SEED}, {cases} cases, none differs: {told}", flush=True)


@pytest.mark.cases(24)
@pytest.mark.parametrize("engine", ["auto", "separate"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_piece_alone(kind: str, engine: str) -> None:
    """Every kind once, so that no draw omits one."""
    check((kind, "plain"), "plain", "adamw", engine, as_module=False, clip=False, data=0)


def test_a_step_that_cannot_be_fused_later_falls_back() -> None:
    """The first step takes one branch for all members; in a later one the branch depends on the member."""
    check(("branch", "branch"), "plain", "adamw", "auto", as_module=False, clip=False, data=0)


def test_a_later_step_is_repeated_separately_where_the_loss_counts() -> None:
    """Each member then has a count of its own, as before."""
    check(("branch", "branch"), "counts", "adamw", "auto", as_module=False, clip=False, data=0)


@pytest.mark.parametrize("late", ["late layer", "late buffer"])
def test_a_later_step_is_not_repeated_where_the_model_remembers(late: str) -> None:
    """A separate module would start with a count of 0."""
    check(("branch", "branch", late), "plain", "adamw", "auto", as_module=False, clip=False, data=0, size=3)


def counting(*, engine: str) -> hydro.Group:
    """Two members after one step."""
    make = double(lambda: Whole(("late change",)))
    group = hydro.fuse(make, [{"lr": 0.03, "seed": 1}, {"lr": 0.01, "seed": 2}], engine=engine)
    group.step(batches(0)[0], Loss("plain"))
    return group


def test_a_model_that_counts_keeps_its_engine() -> None:
    for engine in ("separate", "vmap"):
        group, loss = counting(engine=engine), Loss("plain")
        group.repack()
        found = [group.step(batch, loss) for batch in batches(0)[1:]]
        losses, _ = alone(
            double(lambda: Whole(("late change",))), {"lr": 0.03, "seed": 1}, "adamw", "plain", 0
        )
        assert [float(one[0]) for one in found] == pytest.approx(losses[1:], rel=1e-7)


def test_a_member_that_joins_a_fused_pass_has_its_own_count() -> None:
    """`late change` halves its output from the third call on."""
    for engine in ("separate", "vmap"):
        group, loss = counting(engine=engine), Loss("plain")
        first, *_ = batches(0)
        for _ in range(2):
            group.step(first, loss)
        group.add([{"lr": 0.03, "seed": 1}])
        late = [float(group.step(batch, loss)[2]) for batch in batches(0)]
        losses, _ = alone(
            double(lambda: Whole(("late change",))), {"lr": 0.03, "seed": 1}, "adamw", "plain", 0
        )
        assert late == pytest.approx(losses, rel=1e-7)
