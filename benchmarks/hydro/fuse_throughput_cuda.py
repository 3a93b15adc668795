"""The GPU half of the fusion benchmark: ResNet-18 at scale 8 on CIFAR's shape, N up to 200, side by side with one run.

Called by `fuse_throughput.py --device cuda`; says so and stops where there is no GPU. Separate runs are one model after
the other: their time is N times that of one, which is what N runs on one GPU take. Variants: float32, bfloat16 under
autocast, and, beside them, plain vmap in bfloat16 through torch.compile with one rate for all. (Hydro's own engines are
not compiled: dynamo does not follow the functions by which they take the member dim out of a tensor.) Memory is the
caching allocator's greatest value, per member.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from headrace_torch import hydro

COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)
BATCH, WIDTH, WARM, ROUNDS = 256, 8, 3, 10
Batch = tuple[Tensor, Tensor]
Loss = Callable[[Any, Batch], Tensor]


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
    """The CIFAR form: 64 channels at scale 1, so 8 at scale 8."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        layers, inside = [], width
        for stage in range(4):
            for number in range(2):
                outside = width * 2**stage
                layers.append(Residual(inside, outside, 2 if stage and not number else 1))
                inside = outside
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(functional.relu(self.norm(self.stem(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def plain_loss(model: Any, batch: Batch) -> Tensor:
    """Cross-entropy in float32."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def autocast_loss(model: Any, batch: Batch) -> Tensor:
    """The forward pass in bfloat16 under autocast."""
    with torch.autocast(batch[0].device.type, torch.bfloat16):
        out = model(batch[0])
    return functional.cross_entropy(out.float(), batch[1])


def seconds_of(step: Callable[[], object]) -> float:
    """The best time of a step, device included."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def one_alone(batch: Batch, loss: Loss) -> tuple[float, int]:
    """Time and memory of one plain run with torch's SGD."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = ResNet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    return seconds_of(step), torch.cuda.max_memory_allocated() - before


def hydro_step(n: int, batch: Batch, loss: Loss, device: str) -> Callable[[], object]:
    """A fused group with a rate for each member."""
    members = [{"lr": 0.01 * (i + 1) / n, "momentum": 0.9, "seed": i} for i in range(n)]
    group = hydro.fuse(ResNet18, members, "sgd", engine="grouped", device=device)
    return lambda: group.step(batch, loss)


def compiled_step(
    n: int, batch: Batch, loss: Loss, device: str, backend: str = "inductor"
) -> Callable[[], object]:
    """`torch.func`'s recipe for ensembles under torch.compile; one rate for all."""
    models = [ResNet18().to(device) for _ in range(n)]
    params, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]  # a list of modules
    optimizer = torch.optim.SGD(list(params.values()), lr=0.01, momentum=0.9)

    def one(own: dict[str, Tensor], held: dict[str, Tensor]) -> Tensor:
        return loss(lambda x: functional_call(models[0], (own, held), (x,)), batch)

    mapped = torch.compile(torch.vmap(one), backend=backend)

    def step() -> None:
        optimizer.zero_grad()
        mapped(params, buffers).sum().backward()
        optimizer.step()

    return step


def measured(make: Callable[[], Callable[[], object]], n: int) -> dict[str, Any]:
    """Time and memory of a step; what cannot be done is said in the record."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        step = make()
        step()
        torch.cuda.reset_peak_memory_stats()
        seconds = seconds_of(step)
    except (RuntimeError, hydro.FuseError) as error:
        return {"error": str(error)[:200]}
    return {"seconds": seconds, "bytes_per_member": (torch.cuda.max_memory_allocated() - before) // n}


def run_cuda(out: Path) -> None:
    """Writes fuse_throughput_cuda.json.

    Raises:
        SystemExit: there is no GPU.
    """
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: nothing was measured")
    batch = (torch.randn(BATCH, 3, 32, 32, device="cuda"), torch.randint(0, 10, (BATCH,), device="cuda"))
    variants = {
        "float32": (plain_loss, False),
        "bfloat16": (autocast_loss, False),
        "compiled": (autocast_loss, True),
    }
    rows = []
    for name, (make, loss) in variants.items():
        alone, alone_bytes = one_alone(batch, loss)
        for n in COUNTS:
            row = {"variant": name, "members": n}
            row |= measured(partial(make, n, batch, loss, "cuda"), n)
            if "seconds" in row:
                row["times_separate"] = n * alone / row["seconds"]
            rows.append({**row, "one_alone_seconds": alone, "one_alone_bytes": alone_bytes})
            print(rows[-1], flush=True)
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "batch": BATCH,
        "rows": rows,
    }
    (out / "fuse_throughput_cuda.json").write_text(json.dumps(record, indent=1) + "\n")
