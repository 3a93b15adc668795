"""The planner: memory of unseen group sizes within 10 %, the knee, and budgets."""

import pytest
import torch
from fuse_models import batches, factory, loss_of

from headrace_torch import hydro
from headrace_torch.hydro.fuse.capacity import Point, measure, plan
from headrace_torch.hydro.fuse.memory import peak_bytes

pytestmark = pytest.mark.full

MIB = 2**20


def points(*seconds: tuple[int, float]) -> list[Point]:
    return [
        Point(members=n, step_bytes=(10 + 2 * n) * MIB, first_bytes=(12 + 3 * n) * MIB, seconds=t)
        for n, t in seconds
    ]


def test_the_knee_is_where_throughput_has_risen() -> None:
    # 1 + N/10 seconds: throughput N/(1 + N/10) rises to 10. Of the profile's best, 8.65, 36 members reach 0.9.
    found = plan(points(*((n, 1 + n / 10) for n in (2, 4, 8, 16, 32, 64))), 10_000 * MIB)
    assert found.knee == 36
    assert found.rising
    assert found.most == 2996
    assert found.memory_bytes(100) == 210 * MIB
    assert found.waves(80) == [27, 27, 26]
    flat = plan(points((2, 1.0), (4, 2.0), (8, 4.0)), 10_000 * MIB)
    assert (flat.knee, flat.rising) == (2, False)


def test_the_budget_holds_the_first_step_and_the_margin() -> None:
    found = plan(points((2, 1.0), (4, 1.0), (8, 1.0)), 100 * MIB, margin=0.1)
    assert found.most == 26  # 12 + 3·26 = 90
    assert found.knee == 8
    tight = plan(points((2, 1.0), (4, 1.0), (8, 1.0)), 27 * MIB, margin=0.1)
    assert tight.most == 4
    assert tight.knee == 4  # no more than what fits
    with pytest.raises(
        hydro.MemoryBudgetError, match=r"one member needs about 15\.0 MiB and the budget is 16\.0 MiB"
    ):
        plan(points((2, 1.0), (4, 1.0)), 16 * MIB)


def test_peaks_are_the_allocators() -> None:
    def work() -> None:
        a = torch.zeros(MIB, dtype=torch.float32)
        b = a + 1
        del a
        (b * 2).sum()

    assert peak_bytes(work, torch.device("cpu")) == pytest.approx(8 * MIB, rel=0.01)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_memory_of_other_sizes_within_a_tenth(name: str) -> None:
    batch = batches(name, 1, dtype=torch.float32)[0]
    make = factory(name, torch.float32)
    found = hydro.plan_capacity(
        make, {"lr": 1e-3}, batch, loss_of, profile=(2, 4, 8), budget_bytes=1024 * MIB
    )
    assert [one.members for one in found.points] == [2, 4, 8]
    for n in (3, 6, 12, 16):
        with hydro.fuse(make, [{"lr": 1e-3}] * n, engine=found.engine) as group:
            measured = measure(group, batch, loss_of, rounds=1)
        assert found.memory_bytes(n) == pytest.approx(measured.step_bytes, rel=0.1), n
        assert n <= found.most
