"""The GPU half of the fusion benchmark: ResNet-18 at scale 8 on CIFAR's shape, N up to 200, side by side with one run.

Called by `fuse_throughput.py --device cuda`; it says so and stops if there is no GPU. With `--device cpu --small`
the same code runs with tiny images on a CPU, as a test does, so that no GPU time is lost to a typo. Separate runs
train one model after the other: their time is N times that of one, which is what N runs on one GPU take. Variants:
float32, with the rules and with plain vmap; bfloat16 under autocast; and plain vmap in bfloat16 through
torch.compile with one rate for all. (Hydro's own engines are not compiled: dynamo does not follow the functions
with which they take the member dim out of a tensor.) Memory is the allocator's peak while members are made and
take a step, per member.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fuse_workloads import Batch, loss_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from headrace_torch import hydro
from headrace_torch.hydro.fuse.memory import peak_bytes

Loss = Callable[[Any, Batch], Tensor]
Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is measured: members, rows and side of images, blocks per stage, rounds, torch.compile's backend."""

    counts: tuple[int, ...]
    rows: int
    side: int
    blocks: int
    warm: int
    rounds: int
    backend: str


FULL = Size(
    counts=(1, 2, 5, 10, 20, 50, 100, 200), rows=256, side=32, blocks=2, warm=3, rounds=10, backend="inductor"
)
SMALL = Size(counts=(1, 3), rows=4, side=8, blocks=1, warm=0, rounds=1, backend="aot_eager")


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The CIFAR form: 64 channels at scale 1, so 8 at scale 8. With one block per stage it is ResNet-10."""

    def __init__(self, blocks: int = 2, width: int = 8) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        layers, inside = [], width
        for stage in range(4):
            for number in range(blocks):
                outside = width * 2**stage
                layers.append(Residual(inside, outside, 2 if stage and not number else 1))
                inside = outside
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(functional.relu(self.norm(self.stem(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def autocast_loss(model: Any, batch: Batch) -> Tensor:
    """The forward pass in bfloat16 under autocast."""
    with torch.autocast(batch[0].device.type, torch.bfloat16):
        out = model(batch[0])
    return functional.cross_entropy(out.float(), batch[1])


def batch_on(device: torch.device, size: Size) -> Batch:
    """Random images and labels, on the device."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size.rows, 3, size.side, size.side, generator=generator)
    return images.to(device), torch.randint(0, 10, (size.rows,), generator=generator).to(device)


def seconds_of(step: Step, device: torch.device, size: Size) -> float:
    """The best time of a step, including the device's work."""
    for _ in range(size.warm):
        step()
    best = float("inf")
    for _ in range(size.rounds):
        wait(device)
        start = time.perf_counter()
        step()
        wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def one_alone(batch: Batch, loss: Loss, device: torch.device, size: Size) -> Step:
    """A plain run with torch's SGD, with one kernel for all parameters."""
    model = ResNet18(size.blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    return step


def hydro_step(n: int, batch: Batch, loss: Loss, device: torch.device, size: Size, engine: Any) -> Step:
    """A fused group with a rate for each member."""
    members = [{"lr": 0.01 * (i + 1) / n, "momentum": 0.9, "seed": i} for i in range(n)]
    group = hydro.fuse(partial(ResNet18, size.blocks), members, "sgd", engine=engine, device=device)
    return lambda: group.step(batch, loss)


def compiled_step(n: int, batch: Batch, loss: Loss, device: torch.device, size: Size) -> Step:
    """`torch.func`'s recipe for ensembles under torch.compile; one rate for all."""
    models = [ResNet18(size.blocks).to(device) for _ in range(n)]
    params, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]  # a list of modules
    optimizer = torch.optim.SGD(list(params.values()), lr=0.01, momentum=0.9, fused=True)

    def one(own: dict[str, Tensor], held: dict[str, Tensor]) -> Tensor:
        return loss(lambda x: functional_call(models[0], (own, held), (x,)), batch)

    mapped = torch.compile(torch.vmap(one), backend=size.backend)

    def step() -> None:
        optimizer.zero_grad()
        mapped(params, buffers).sum().backward()
        optimizer.step()

    return step


def measured(make: Callable[[], Step], n: int, device: torch.device, size: Size) -> dict[str, Any]:
    """The time and memory of a step. If it fails, for example for lack of memory, the record says so."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    made: list[Step] = []

    def begin() -> None:
        made.append(make())
        made[0]()

    try:
        held = peak_bytes(begin, device)
        seconds = seconds_of(made[0], device, size)
    except (RuntimeError, hydro.FuseError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"seconds": seconds, "bytes_per_member": held // n}


def run_cuda(out: Path, device: torch.device, size: Size) -> None:
    """Writes fuse_throughput_cuda.json; after every row, so that measurements are kept if time runs out.

    Raises:
        SystemExit: the device does not exist.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: nothing was measured")
    batch = batch_on(device, size)
    variants: Mapping[str, tuple[Loss, Callable[[int], Step]]] = {
        "float32": (loss_of, lambda n: hydro_step(n, batch, loss_of, device, size, "grouped")),
        "float32, vmap": (loss_of, lambda n: hydro_step(n, batch, loss_of, device, size, "vmap")),
        "bfloat16": (autocast_loss, lambda n: hydro_step(n, batch, autocast_loss, device, size, "grouped")),
        "bfloat16, compiled": (
            autocast_loss,
            lambda n: compiled_step(n, batch, autocast_loss, device, size),
        ),
    }
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "batch": size.rows,
        "rows": [],
    }
    alone = {
        loss: measured(partial(one_alone, batch, loss, device, size), 1, device, size)
        for loss in (loss_of, autocast_loss)
    }
    for name, (loss, make) in variants.items():
        for n in size.counts:
            row: dict[str, Any] = {"variant": name, "members": n, "alone": alone[loss]}
            row |= measured(partial(make, n), n, device, size)
            if "seconds" in row and "seconds" in alone[loss]:
                row["times_separate"] = round(n * alone[loss]["seconds"] / row["seconds"], 3)
            record["rows"].append(row)
            print(row, flush=True)
            (out / "fuse_throughput_cuda.json").write_text(json.dumps(record, indent=1) + "\n")
