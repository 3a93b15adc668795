"""What ranks do in the tests of policies, wrappers and sharding."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from ranks_tasks import flat, largest_difference, loss_on, network, samples
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ConstantLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    LogSpaceRule,
    NotReplicasError,
    OneCycleAutoLR,
    Probe,
    ReplicaGroup,
    SyncReport,
    dropout,
    learning_rates,
    warm_init_,
    weight_decay,
)


def buffers(policy: str) -> dict[str, list[float]]:
    """Gives each rank its own BatchNorm statistics, and returns all ranks' before and after a sync."""
    model = network(0, norm=True)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean.fill_(float(dist.get_rank()))
    norm.num_batches_tracked.fill_(10 + dist.get_rank())
    optimizer = SGD(model.parameters(), lr=0.1)
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer),
        sync_every=1,
        buffers=policy,  # type: ignore[arg-type]
    )
    controller.observe(1.0)
    controller.after_step()
    return {"mean": gathered(float(norm.running_mean[0])), "count": gathered(float(norm.num_batches_tracked))}


def optimizer_state(policy: str) -> list[float]:
    """Returns all ranks' first moment after a sync, whose values before were 1, 2, 3, 4; −1 if there is none."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        optimizer.state[parameter]["exp_avg"].fill_(float(dist.get_rank() + 1))
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer),
        sync_every=1,
        optimizer_state=policy,  # type: ignore[arg-type]
    )
    controller.after_step()
    state = optimizer.state.get(model.weight, {})
    return gathered(float(state["exp_avg"][0, 0]) if "exp_avg" in state else -1.0)


def accumulated() -> list[float | None]:
    """Two micro-batches of weights 1 and 3 per step, two steps; returns the losses of the sync."""
    model, optimizer = _linear()
    controller = HDETController(model, optimizer, learning_rates(optimizer), sync_every=2)
    report = None
    for step in range(2):
        controller.observe(10.0 + dist.get_rank() + step, weight=1)
        controller.observe(torch.tensor(20.0 + dist.get_rank() + step), weight=3)
        optimizer.step()
        report = controller.after_step()
    assert report is not None
    return list(report.losses)


def accumulated_drop_in() -> list[float | None]:
    """The same through the drop-in: all micro-batches count, not only the last."""
    _, optimizer = _linear()
    scheduler = OneCycleAutoLR(
        optimizer, 0.1, 10, cycle_momentum=False, ensemble_lr_spread_ratio=0.1, model_sync_interval=2
    )
    report = None
    for step in range(2):
        scheduler.observe(10.0 + dist.get_rank() + step)
        scheduler.observe(20.0 + dist.get_rank() + step)
        optimizer.step()
        report = scheduler.step()
    assert report is not None
    return list(report.losses)


def with_losses(losses: list[float | None], api: str) -> tuple[str, float]:
    """One sync under given losses; returns the report and the largest difference of rates' centres over ranks."""
    model, optimizer = _linear()
    mine = losses[dist.get_rank()]
    report: SyncReport | None
    if api == "controller":
        controller = HDETController(model, optimizer, learning_rates(optimizer), sync_every=1)
        if mine is not None:
            controller.observe(mine)
        optimizer.step()
        report = controller.after_step()
    else:
        scheduler = OneCycleAutoLR(
            optimizer,
            0.1,
            10,
            cycle_momentum=False,
            ensemble_lr_spread_ratio=0.1,
            model_sync_interval=1,
            auto_lr_warmup_steps=0,
            enable_auto_lr=True,
        )
        optimizer.step()
        report = scheduler.step(mine)
    assert report is not None
    center = torch.tensor([report.hyperparameters[0].center], dtype=torch.float64)
    return report.to_json(), largest_difference(center)


def diverged_parameters() -> tuple[list[int], list[float]]:
    """Rank 2's parameters become NaN under local gradients; returns who was left out, and all ranks' values after."""
    model, optimizer = _linear()
    controller = HDETController(
        model, optimizer, learning_rates(optimizer), sync_every=1, mode="local_grad", optimizer_state="keep"
    )
    with torch.no_grad():
        model.weight.fill_(float("nan") if dist.get_rank() == 2 else float(dist.get_rank()))
    controller.observe(float("nan") if dist.get_rank() == 2 else 1.0)
    report = controller.after_step()
    assert report is not None
    return list(report.left_out), gathered(float(model.weight.detach()[0, 0]))


def masters() -> dict[str, Any]:
    """A bfloat16 model with float32 masters that differ by less than bfloat16 resolves."""
    low = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    master = nn.Parameter(torch.ones(1, 4) + 1e-4 * dist.get_rank())
    with torch.no_grad():
        low.weight.copy_(master)
    optimizer = SGD([master], lr=0.1)
    controller = HDETController(
        low, optimizer, learning_rates(optimizer), sync_every=1, masters=[(low.weight, master)]
    )
    controller.after_step()
    return {
        "master": float(master.detach()[0, 0]),
        "low": float(low.weight.detach()[0, 0]),
        "apart": largest_difference(low.weight.float()),
    }


def half_precision() -> float:
    """Parameters held in float16 whose sum overflows float16: the mean is taken in float32."""
    model = nn.Linear(1, 1, bias=False).half()
    with torch.no_grad():
        model.weight.fill_(40000.0 + 64 * dist.get_rank())
    optimizer = SGD(model.parameters(), lr=0.1)
    HDETController(model, optimizer, learning_rates(optimizer), sync_every=1).after_step()
    return float(model.weight.detach())


def under_ddp(no_sync: bool, autocast: bool) -> tuple[float, int, float]:
    """Trains under DDP, with two micro-batches per step of which the first runs under no_sync, or in bfloat16."""
    model = DistributedDataParallel(network(5, norm=True))
    optimizer = Adam(model.parameters(), lr=0.01)
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.2), sync_every=3)
    scheduler = HDETScheduler(ConstantLR(optimizer, factor=1.0), controller)
    reports = 0
    difference = apart = 0.0
    for step in range(6):
        optimizer.zero_grad()
        for micro in range(2 if no_sync else 1):
            batch = samples(2 * step + micro, dist.get_rank())
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                if no_sync and micro == 0:
                    with model.no_sync():
                        loss = loss_on(model, batch)
                        loss.backward()
                else:
                    loss = loss_on(model, batch)
                    loss.backward()
            controller.observe(loss)
        optimizer.step()
        report = scheduler.step()
        if report is not None:
            reports += 1
            difference = max(difference, largest_difference(flat(model)))
        else:
            apart = largest_difference(flat(model))
    return difference, reports, apart


def hybrid_sharding() -> dict[str, Any]:
    """Two replicas of two shards each under FSDP2: averages over the replicate dimension only."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    fully_shard(model, mesh=mesh)
    optimizer = SGD(model.parameters(), lr=0.05)
    group = ReplicaGroup.from_mesh(mesh)
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.5), group, sync_every=2)
    scheduler = HDETScheduler(ConstantLR(optimizer, factor=1.0), controller)
    apart, losses, shards = [], None, []
    for step in range(2):
        loss = loss_on(model, samples(step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:
            before = torch.cat([p.to_local().detach().reshape(-1).clone() for p in model.parameters()])
            apart.append(largest_difference(before, group.across))
        report = scheduler.step(loss)
        losses = report.losses if report else None
    after = torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()])
    mean = before.clone()
    dist.all_reduce(mean, group=group.across)
    shards = [float((after - mean / 2).abs().max()), largest_difference(after, group.across)]
    return {"apart": apart[0], "shards": shards, "losses": losses, "replica": group.rank, "size": group.size}


def refused(kind: str) -> str:
    """Returns the text with which something that is no replica is refused."""
    model: nn.Module = nn.Linear(8, 8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer: Any = None
    group: Any = None
    if kind in ("fsdp2", "hybrid over all ranks"):
        from torch.distributed.fsdp import fully_shard

        if kind == "fsdp2":
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
        else:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh)
    elif kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif kind == "zero":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own import is deprecated in torch
            from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1)
    elif kind == "other weights":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=_generator()))
    elif kind == "other shapes":
        model = nn.Linear(8, 8 + dist.get_rank() // 2)
    optimizer = optimizer if optimizer is not None else SGD(model.parameters(), lr=0.1)
    try:
        HDETController(model, optimizer, learning_rates(optimizer), group, sync_every=1)
    except NotReplicasError as error:
        return str(error)
    return "accepted"


def stages() -> tuple[list[float | None], list[float]]:
    """Two replicas of two hand-made stages, of which only the last sees a loss.

    Returns losses and all ranks' weights.
    """
    rank = dist.get_rank()
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    stages_of = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage, replica = rank % 2, rank // 2
    model = nn.Linear(1, 1 + stage, bias=False)
    with torch.no_grad():
        model.weight.fill_(10.0 * (stage + 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    group = ReplicaGroup(replicas[stage], within=stages_of[replica])
    controller = HDETController(model, optimizer, learning_rates(optimizer), group, sync_every=1)
    with torch.no_grad():
        model.weight.add_(float(replica))
    if stage == 1:
        controller.observe(3.0 + replica)
    report = controller.after_step()
    assert report is not None
    return list(report.losses), gathered(float(model.weight.detach()[0, 0]))


def warm_init(scope: str) -> dict[str, Any]:
    """Returns how far each rank went, relative to ν times the norm, and whether the noise survived the constructor."""
    model = network(6)
    before = flat(model)
    state = torch.get_rng_state()
    warm_init_(model.parameters(), 0.01, seed=2, scope=scope)  # type: ignore[arg-type]
    untouched = bool(torch.equal(state, torch.get_rng_state()))
    warm = flat(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    OneCycleAutoLR(optimizer, 0.1, 100, cycle_momentum=False, ensemble_lr_spread_ratio=0.1)
    return {
        "ratio": float((warm - before).norm() / before.norm()) / 0.01,
        "survived": bool(torch.equal(flat(model), warm)),
        "apart": largest_difference(warm) > 0,
        "untouched": untouched,
    }


def hyperparameters_at_once() -> list[list[float]]:
    """Explores three hyperparameters under local gradients for some syncs; returns all ranks' values of each."""
    model = network(7, dropout=0.3)
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    common = samples(999)
    explored = [*learning_rates(optimizer), weight_decay(optimizer), dropout(model)]
    controller = HDETController(
        model,
        optimizer,
        explored,
        sync_every=2,
        mode="local_grad",
        score=Probe(model, lambda _sync: common, loss_on),
    )
    for step in range(8):
        loss = loss_on(model, samples(step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        controller.observe(loss)
        report = controller.after_step()
        assert model.training
        if report is not None:
            assert largest_difference(flat(model)) == 0
            for one, record in zip(explored, report.hyperparameters, strict=True):
                assert one.get() == record.values[dist.get_rank()]
    assert report is not None
    return [list(record.values) for record in report.hyperparameters]


def loss_bias() -> str:
    """Returns the warning that dropout scored by its own training loss draws."""
    model = network(7, dropout=0.3)
    optimizer = SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        HDETController(model, optimizer, [dropout(model)], mode="local_grad")
    return str(caught[0].message)


def dropout_exploration(probed: bool, syncs: int, interval: int, start: float, best: float) -> list[float]:
    """Explores dropout on the inputs of a linear regression whose optimum is `best`; returns the trajectory.

    With inputs x ~ N(0, I), dropout p on them is in expectation a ridge penalty p/(1−p) on the weights. Of w
    = 1 + noise per coordinate (all replicas see the same noisy targets), the held-out loss ‖w(p) − w*‖² is
    least at a known p.
    """
    model = InputDropout(best)
    optimizer = SGD(model.parameters(), lr=0.05)
    model.drop.p = start
    score: Any = Probe(model, lambda _sync: None, lambda m, _batch: m.held_out()) if probed else "loss"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the bias is what is shown
        controller = HDETController(
            model,
            optimizer,
            [dropout(model, spread=0.8, low=0.0, high=0.9)],
            sync_every=interval,
            mode="local_grad",
            score=score,
            rule=LogSpaceRule(gain=0.3, cap=0.3),
        )
    torch.manual_seed(10 + dist.get_rank())
    trajectory = []
    for _ in range(syncs * interval):
        loss = model()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        controller.observe(loss)
        if controller.after_step() is not None:
            trajectory.append(controller.value("dropout"))
    return trajectory


class InputDropout(nn.Module):
    """A linear regression with dropout on its inputs, and targets whose overestimated weights call for shrinking.

    The training targets come from weights u = 1/(1 − best); under dropout p the minimiser is w(p) = (1 −
    p)·u coordinate-wise, since E[(u·x − w·x̃)²] = (u − w)² + p/(1−p)·w². The held-out targets come from
    weights 1, so w(best) is exact.
    """

    def __init__(self, best: float, dim: int = 16, size: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        # An orthonormal design: the sample covariance is the identity, and the optimum above holds for this
        # very sample.
        basis, _ = torch.linalg.qr(torch.randn(size, dim, generator=generator))
        self.x = basis * size**0.5
        self.y = self.x.sum(dim=1) / (1 - best)
        self.weight = nn.Parameter(torch.ones(dim) / (1 - best))
        self.drop = nn.Dropout(0.0)

    def forward(self) -> Tensor:
        return ((self.drop(self.x) @ self.weight - self.y) ** 2).mean()

    def held_out(self) -> Tensor:
        return ((self.x @ (self.weight - 1)) ** 2).mean()


def overhead(width: int = 2300, batch: int = 64, steps: int = 4) -> dict[str, float]:
    """Times steps under DDP and syncs of a model of more than 10M parameters; returns medians over this rank's."""
    import statistics
    import time

    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    wrapped = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), lr=1e-3)
    controller = HDETController(wrapped, optimizer, learning_rates(optimizer), sync_every=1)
    times, syncs = [], []
    x = torch.randn(batch, width)
    for _ in range(steps):
        dist.barrier()
        began = time.monotonic()
        optimizer.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()
        optimizer.step()
        times.append(time.monotonic() - began)
        controller.observe(loss)
        dist.barrier()
        report = controller.after_step()
        assert report is not None
        syncs.append(report.seconds)
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "parameters": parameters,
        "step_s": statistics.median(times),
        "sync_s": statistics.median(syncs),
        "bytes": report.bytes_averaged,
    }


def gathered(value: float) -> list[float]:
    heard: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(heard, value)
    return heard


def _linear() -> tuple[nn.Linear, SGD]:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    return model, SGD(model.parameters(), lr=0.1)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(dist.get_rank())
