"""A trial on several ranks, each with random numbers and a data order of its own. Every step is recorded with
digests.

`kind` says what is trained: `plain` (no PyTorch), `fsdp` (FSDP2, sharded) or `zero` (DeepSpeed, ZeRO stage 2).
"""

import hashlib
import json
import os
import random
import select
from pathlib import Path
from typing import Any

from headrace import trial

STEP_S = float(os.environ.get("GANG_STEP_S", "0.1"))
SAMPLES = 64


class Chain:
    """The digest of everything that this rank has drawn so far."""

    def __init__(self) -> None:
        self.value = ""

    def add(self, *drawn: object) -> None:
        self.value = hashlib.sha256(f"{self.value} {drawn!r}".encode()).hexdigest()

    def state_dict(self) -> dict[str, str]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.value = state["value"]


def train(t: trial.Trial) -> None:
    """Train, and record what each step drew and the weights that it produced."""
    journal = Path(os.environ["GANG_JOURNAL"]) / f"{t.number}-{t.rank}.jsonl"
    seed = 1000 * t.number + t.rank
    own, chain = random.Random(seed), Chain()
    batches = trial.ResumableBatches(SAMPLES, 8, seed=seed)
    step_on, weights = {"plain": plain, "fsdp": fsdp, "zero": zero}[os.environ["GANG_KIND"]](
        t, {"own": own, "chain": chain, "batches": batches}
    )
    for step in t.steps(checkpoint_every=1):
        select.select([], [], [], STEP_S)
        for batch in batches.take(2):
            noise = own.random()
            chain.add(batch, noise, *step_on(batch, noise))
        found = {
            "step": step,
            "draws": chain.value,
            "weights": weights(),
            "runtime": os.environ["HEADRACE_RUNTIME"],
        }
        with journal.open("a", encoding="utf-8") as out:
            out.write(json.dumps(found | {"resumed": t.resumed}) + "\n")
        t.report(loss=t.params["x"])


def plain(t: trial.Trial, tracked: dict[str, Any]) -> tuple[Any, Any]:
    """A number in place of a model."""
    model = Chain()
    t.track(model=model, **tracked)

    def step_on(batch: list[int], noise: float) -> tuple[object, ...]:
        model.add(batch, noise)
        return ()

    return step_on, lambda: model.value


def network() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))


def samples(batch: list[int], noise: float) -> tuple[Any, Any]:
    import torch

    inputs = torch.arange(4.0 * SAMPLES).reshape(SAMPLES, 4).sin()[batch] + 0.1 * noise
    return inputs, inputs.sum(dim=1, keepdim=True)


def bits(tensors: Any) -> str:
    hasher = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        hasher.update(local.detach().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def fsdp(t: trial.Trial, tracked: dict[str, Any]) -> tuple[Any, Any]:
    """FSDP2 over all ranks, with AdamW and a schedule."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from headrace_torch.sharded import ShardedState

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = network()
    mesh = init_device_mesh("cpu", (t.world_size,))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    torch.manual_seed(1000 * t.number + t.rank)  # dropout differs between the ranks
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    t.track(training=ShardedState(model, optimizer), schedule=schedule, **tracked)

    def step_on(batch: list[int], noise: float) -> tuple[object, ...]:
        inputs, targets = samples(batch, noise)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return loss.item(), torch.rand(()).item()

    return step_on, lambda: bits(model.parameters())


def zero(t: trial.Trial, tracked: dict[str, Any]) -> tuple[Any, Any]:
    """DeepSpeed, ZeRO stage 2."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch

    torch.set_num_threads(1)
    # DeepSpeed would now compile a faster shared-memory all-reduce for a minute; gloo's own is enough here.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    engine, *_ = deepspeed.initialize(
        model=network(),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
            "zero_optimization": {"stage": 2},
        },
    )
    torch.manual_seed(1000 * t.number + t.rank)
    t.track(engine=engine, **tracked)

    def step_on(batch: list[int], noise: float) -> tuple[object, ...]:
        inputs, targets = samples(batch, noise)
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        return loss.item(), torch.rand(()).item()

    return step_on, lambda: bits(engine.module.parameters())
