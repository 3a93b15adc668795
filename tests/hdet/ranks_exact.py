"""What ranks do in the tests of exactness: equal to DDP, rates from the first step, formulas, generators."""

import random
from typing import Any, Literal

import torch
import torch.distributed as dist
from ranks_tasks import (
    Quadratic,
    flat,
    largest_difference,
    loss_on,
    network,
    quadratic_batches,
    samples,
    share_gradients,
    shared_step,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    LogSpaceRule,
    OneCycleAutoLR,
    SyncReport,
    learning_rates,
)

Api = Literal["one_cycle", "controller"]


def alpha_zero_equals_ddp(api: Api, steps: int = 200) -> float:
    """Trains two copies under DDP, one with OneCycleLR and one with ours at α=0; returns their largest difference."""
    outcomes = []
    for mine in (False, True):
        torch.manual_seed(
            100 + dist.get_rank()
        )  # dropout differs between ranks, and is the same in both runs
        model = DistributedDataParallel(network(3, norm=True, dropout=0.1))
        optimizer = Adam(model.parameters(), lr=0.01)
        cycle: dict[str, Any] = {"max_lr": 0.01, "total_steps": steps + 1}
        scheduler: Any
        if not mine:
            scheduler = OneCycleLR(optimizer, **cycle)
        elif api == "one_cycle":
            scheduler = OneCycleAutoLR(optimizer, **cycle, model_sync_interval=10)
        else:
            base = OneCycleLR(optimizer, **cycle)
            controller = HDETController(
                model, optimizer, learning_rates(optimizer, spread=0.0), sync_every=10
            )
            scheduler = HDETScheduler(base, controller)
        for step in range(steps):
            loss = loss_on(model, samples(step, dist.get_rank()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step(loss) if mine else scheduler.step()
        outcomes.append(torch.cat([flat(model), *(b.reshape(-1).float() for b in model.buffers())]))
    assert torch.isfinite(outcomes[0]).all()
    return float((outcomes[0] - outcomes[1]).abs().max())


def rates_from_the_first_step(api: Api, alpha: float = 0.3, steps: int = 12) -> list[list[float]]:
    """Returns, for each step, this rank's rate over the schedule's. Checks that ranks are equal only after a sync."""
    model, reference = network(1), network(1)
    optimizer, plain = SGD(model.parameters(), lr=0.1), SGD(reference.parameters(), lr=0.1)
    cycle: dict[str, Any] = {"max_lr": [0.1], "total_steps": 40, "cycle_momentum": False}
    bare = OneCycleLR(plain, **cycle)
    scheduler: OneCycleAutoLR | HDETScheduler
    if api == "one_cycle":
        scheduler = OneCycleAutoLR(
            optimizer, **cycle, ensemble_lr_spread_ratio=alpha, model_sync_interval=6, auto_lr_warmup_steps=39
        )
    else:
        rates = learning_rates(optimizer, spread=alpha)
        # An update that cannot move leaves exp(μ) at 1.
        controller = HDETController(model, optimizer, rates, sync_every=6, start_after=steps)
        scheduler = HDETScheduler(OneCycleLR(optimizer, **cycle), controller)
    ratios, differences = [], []
    for step in range(steps):
        ratios.append(optimizer.param_groups[0]["lr"] / plain.param_groups[0]["lr"])
        shared_step(model, optimizer, samples(step, dist.get_rank()))
        plain.step()
        bare.step()
        report = scheduler.step(1.0)
        differences.append((report is not None, largest_difference(flat(model))))
    assert [synced for synced, _ in differences] == [(step + 1) % 6 == 0 for step in range(steps)]
    assert all((apart == 0) == synced for synced, apart in differences), differences
    return [[ratio] for ratio in ratios]


def paper_records(n: int, syncs: int = 50, groups: int = 4) -> dict[str, Any] | None:
    """Feeds known losses to the first n ranks for some syncs.

    Returns the numbers in the reports, the losses and rank 0's rates.
    """
    group = dist.new_group(list(range(n)))
    if dist.get_rank() >= n:
        return None
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(groups)]
    optimizer = Adam([{"params": [p]} for p in parameters], lr=1.0)
    reports: list[SyncReport] = []
    interval, warmup, peaks = 2, 10, [1e-3 * (k + 1) for k in range(groups)]
    total = warmup + interval * syncs
    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=peaks,
        total_steps=total,
        ensemble_lr_spread_ratio=1 / 9,
        model_sync_interval=interval,
        auto_lr_warmup_steps=warmup,
        form="paper",
        enable_auto_lr=True,
        loss_scale=0.1,
        seed=5,
        replica_group=group,
        on_sync=reports.append,
    )
    losses, rates = [], []
    for step in range(total):
        draw = random.Random(1000 * step + dist.get_rank()).gauss(3.0, 0.1)
        optimizer.step()
        scheduler.step(torch.tensor(draw, dtype=torch.float64))
        losses.append(draw)
        rates.append([group["lr"] for group in optimizer.param_groups])
    heard: list[Any] = [None] * n
    dist.all_gather_object(heard, (losses, rates), group=group)
    dist.destroy_process_group(group)
    assert all(type(rate) is float for rate in rates[-1])
    return {
        "reports": [report.to_json() for report in reports],
        "losses": [one for one, _ in heard],
        "rates": [one for _, one in heard],
        "peaks": peaks,
        "interval": interval,
        "warmup": warmup,
        "total": total,
    }


def controller_records(n: int, syncs: int = 50, groups: int = 4) -> dict[str, Any] | None:
    """The same for the controller's rule. One loss is NaN now and then, and one is missing."""
    group = dist.new_group(list(range(n)))
    if dist.get_rank() >= n:
        return None
    model = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(groups)])
    optimizer = SGD([{"params": [p]} for p in model], lr=1.0)
    controller = HDETController(
        model, optimizer, learning_rates(optimizer), group, sync_every=1, rule=LogSpaceRule(), seed=9
    )
    losses: list[list[float | None]] = []
    reports = []
    for sync in range(syncs):
        row: list[float | None] = [random.Random(77 * sync + r).gauss(3.0, 0.1) for r in range(n)]
        if sync % 7 == 3:
            row[sync % n] = float("nan")
        if sync % 7 == 5:
            row[sync % n] = None
        mine = row[dist.get_rank()]
        if mine is not None:
            controller.observe(mine)
        optimizer.step()
        report = controller.after_step()
        assert report is not None
        losses.append(row)
        reports.append(report.to_json())
    dist.destroy_process_group(group)
    return {"reports": reports, "losses": losses}


def generators_are_untouched(extra_draws: bool = True) -> tuple[list[list[float]], bool]:
    """Runs with extra draws on rank 1; returns all ranks' multipliers after each sync, and whether the states were
    unchanged."""
    model = network(2)
    optimizer = SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    state, python = torch.get_rng_state(), random.getstate()
    reports: list[SyncReport] = []
    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=60,
        cycle_momentum=False,
        ensemble_lr_spread_ratio=0.5,
        model_sync_interval=3,
        auto_lr_warmup_steps=0,
        enable_auto_lr=True,
        on_sync=reports.append,
    )
    same = bool(torch.equal(state, torch.get_rng_state())) and python == random.getstate()
    found = []
    for step in range(30):
        if extra_draws and dist.get_rank() == 1:
            torch.rand(step + 1)
            random.random()
        before, before_python = torch.get_rng_state(), random.getstate()
        optimizer.step()
        report = scheduler.step(1.0)
        same &= bool(torch.equal(before, torch.get_rng_state())) and before_python == random.getstate()
        if report is not None:
            centers = [one.center for one in report.hyperparameters]
            mine = [g["lr"] / c for g, c in zip(optimizer.param_groups, centers, strict=True)]
            heard: list[list[float]] = [[]] * 4
            dist.all_gather_object(heard, mine)
            found += [list(column) for column in zip(*heard, strict=True)]
    return found, same


def floor_without_signal(syncs: int = 40, interval: int = 3, warmup: int = 31) -> float:
    """Returns the last rate's centre over OneCycle's floor, if all replicas always see the same loss."""
    optimizer = SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    reports: list[SyncReport] = []
    total = warmup + interval * syncs + 1
    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=total,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=interval,
        auto_lr_warmup_steps=warmup,
        form="paper",
        enable_auto_lr=True,
        on_sync=reports.append,
    )
    for _ in range(total):
        optimizer.step()
        scheduler.step(2.5)
    return reports[-1].hyperparameters[0].center / (0.1 / 25 / 1e4)


def mean_against_plain(steps: int = 40) -> float:
    """Fans out on the quadratic; returns how far the mean of the replicas is from plain SGD on the same batches."""
    model, plain = Quadratic(0), Quadratic(0)
    optimizer, plain_optimizer = SGD(model.parameters(), lr=0.5), SGD(plain.parameters(), lr=0.5)
    OneCycleAutoLR(
        optimizer, 0.5, steps + 1, cycle_momentum=False, div_factor=1.0, ensemble_lr_spread_ratio=0.5
    )
    mine, theirs = quadratic_batches(0, dist.get_rank()), quadratic_batches(0, dist.get_rank())
    worst = 0.0
    for _ in range(steps):
        for one, its_optimizer, batches in ((model, optimizer, mine), (plain, plain_optimizer, theirs)):
            its_optimizer.zero_grad()
            one(next(batches)).backward()
            share_gradients(one)
            its_optimizer.step()
        assert largest_difference(model.theta) > 0
        mean = model.theta.detach().clone()
        dist.all_reduce(mean)
        worst = max(worst, float((mean / 4 - plain.theta.detach()).abs().max()))
    return worst
