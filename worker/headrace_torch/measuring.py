"""Times a plan of `headrace plan … --measure` on an `nn.Sequential`: one trial, one plan, a few iterations.

    # train.py
    from headrace_torch.measuring import time_plan

    def measure(t):
        time_plan(t, lambda: (net, lambda size: torch.randn(size, 784)))

`headrace plan layers.json CLUSTER --measure train:measure` runs it once for each plan of the shortlist, with one
process per device. `time_plan` does what the plan says: its stages with 1F1B, data ranks that sum gradients, an
optimizer that o ranks share, recomputed layers. It reports `iteration_s`, the median over the iterations after the
first.

A function of your own may do the same for any other framework: `plan_of(t)` is the plan, and the metric is
`iteration_s`, in seconds.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

from headrace.errors import HeadraceError
from headrace.trial import Trial
from headrace_torch.profiling import Sample

SHORTLIST = "PLAN_SHORTLIST"
"""The environment variable with all plans, as JSON by the value of the parameter `split`."""


class MeasureError(HeadraceError):
    """A plan cannot be timed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanToTime:
    """What a trial times. Ranks are numbered stage by stage, data ranks within a stage, tensor ranks within those."""

    data: int
    tensor: int
    optimizer: int
    pipeline: int
    micro_batches: int
    expert: int
    micro_batch: int
    """Samples of one micro-batch."""
    schedule: str
    boundaries: tuple[int, ...]
    """Stage j holds the layers from `boundaries[j]` to before `boundaries[j + 1]`."""
    recomputed: frozenset[int]

    @property
    def devices(self) -> int:
        """The number of all ranks."""
        return self.data * self.tensor * self.pipeline


def plan_of(t: Trial) -> PlanToTime:
    """The plan that a trial must time. Raises MeasureError outside `headrace plan … --measure`."""
    plans = os.environ.get(SHORTLIST)
    if plans is None:
        raise MeasureError(
            f"{SHORTLIST} is not set, so no plan is known.", remedy="Run `headrace plan … --measure`."
        )
    told = json.loads(plans)[str(t.params["split"])]
    told["boundaries"] = tuple(told["boundaries"])
    told["recomputed"] = frozenset(told["recomputed"])
    return PlanToTime(**told)


def time_plan(t: Trial, make: Callable[[], tuple[nn.Sequential, Sample]]) -> None:
    """Runs the trial's iterations of its plan and reports their time.

    `make` returns the layers and a function from a number of samples to an input, as `profiling` takes them; it
    must return the same on every rank. CUDA is used if available, with NCCL; else the CPU, with Gloo. The loss is
    the mean square of the output. Raises MeasureError for tensor and expert ranks, for schedules other than 1f1b,
    and if the number of layers or processes is not the plan's.
    """
    plan = plan_of(t)
    net, sample = make()
    check(plan, layers=len(net), processes=t.world_size)
    device = torch.device("cuda", t.rank) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        stage = _Stage(plan, net, device, t.rank)
        inputs = sample(plan.micro_batch * plan.micro_batches).to(device)
        seconds: list[float] = []
        for _ in t.steps():
            dist.barrier()
            start = time.perf_counter()
            stage.iteration(inputs)
            dist.barrier()
            seconds.append(time.perf_counter() - start)
            t.report(iteration_s=median(seconds[1:] or seconds))
    finally:
        dist.destroy_process_group()


def check(plan: PlanToTime, *, layers: int, processes: int) -> None:
    """Raises MeasureError if `time_plan` cannot run a plan with this many layers and processes."""
    if plan.tensor > 1 or plan.expert > 1 or plan.schedule != "1f1b":
        raise MeasureError(
            f"time_plan cannot run a plan with tensor={plan.tensor}, expert={plan.expert}, schedule {plan.schedule}.",
            remedy="Plan with a profile and 1f1b, or time it with a function of your own (`plan_of`).",
        )
    if layers != plan.boundaries[-1]:
        raise MeasureError(
            f"The net has {layers} layers, and the plan {plan.boundaries[-1]}.",
            remedy="Profile the same net.",
        )
    if processes != plan.devices:
        raise MeasureError(
            f"The plan has {plan.devices} devices, and {processes} processes run.",
            remedy="Start one process for each device.",
        )


class _Stage:
    """One rank: its layers, the groups that it communicates with, its optimizer."""

    def __init__(self, plan: PlanToTime, net: nn.Sequential, device: torch.device, rank: int) -> None:
        self._micro_batches = plan.micro_batches
        self._data = plan.data
        stage = rank // plan.data
        self._first = stage == 0
        pipes = [[j * plan.data + i for j in range(plan.pipeline)] for i in range(plan.data)]
        rows = [[j * plan.data + i for i in range(plan.data)] for j in range(plan.pipeline)]
        shards = [row[k : k + plan.optimizer] for row in rows for k in range(0, plan.data, plan.optimizer)]
        # Every rank makes every group, in the same order.
        pipe, self._row, shard = (_own(groups, rank) for groups in (pipes, rows, shards))
        indices = range(plan.boundaries[stage], plan.boundaries[stage + 1])
        layers = [_Recomputed(net[i]) if i in plan.recomputed else net[i] for i in indices]
        self._module = nn.Sequential(*layers).to(device)
        self._schedule: Schedule1F1B | ScheduleGPipe | None = None
        if plan.pipeline > 1:
            # With fewer micro-batches than stages 1F1B has no steady phase, and PyTorch requires GPipe.
            kind = Schedule1F1B if plan.micro_batches >= plan.pipeline else ScheduleGPipe
            part = PipelineStage(self._module, stage, plan.pipeline, device, group=pipe)
            self._schedule = kind(part, plan.micro_batches, loss_fn=_loss)
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._optimizer = _optimizer(self._parameters, shard if plan.optimizer > 1 else None)

    def iteration(self, inputs: Tensor) -> None:
        """Runs all micro-batches, the sum of gradients over data ranks, and the optimizer's step."""
        if self._schedule is None:
            for piece in inputs.tensor_split(self._micro_batches):
                torch.autograd.backward(_loss(self._module(piece), piece) / self._micro_batches)
        elif self._first:
            self._schedule.step(inputs)
        else:
            self._schedule.step(target=inputs)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._data > 1 and gradients:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=self._row)
            flat /= self._data
            pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, piece in zip(gradients, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        if inputs.device.type == "cuda":
            torch.cuda.synchronize(inputs.device)


class _Recomputed(nn.Module):
    """A layer that keeps only its input, and recomputes the rest."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.layer, inputs, use_reentrant=False)
        return found


def _loss(output: Tensor, _: Tensor) -> Tensor:
    return output.float().square().mean()


def _own(groups: Sequence[Sequence[int]], rank: int) -> dist.ProcessGroup:
    made: list[tuple[Sequence[int], dist.ProcessGroup]] = [
        (members, dist.new_group(list(members))) for members in groups
    ]
    return next(group for members, group in made if rank in members)


def _optimizer(
    parameters: Sequence[nn.Parameter], shard: dist.ProcessGroup | None
) -> torch.optim.Optimizer | None:
    """Adam, as plans count it; a stage may have no parameters."""
    if not parameters:
        return None
    if shard is None:
        return torch.optim.Adam(parameters, lr=1e-6)
    # Imported here, because loading it warns about parts of PyTorch that nobody asked for.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, process_group=shard, lr=1e-6)
