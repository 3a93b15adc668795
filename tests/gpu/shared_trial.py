"""The program of the trials in test_gpu_service.py. Four share a GPU, and wait for each other to show it.

`greedy` takes a quarter of its budget in each step, and keeps it. A CPU has no allocator that PyTorch could limit, so
there the program compares with its budget itself.
"""

import os
import time
from pathlib import Path

import torch

from headrace.trial import Trial

TOGETHER = 4
MEET_S = 90


def train(t: Trial) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    budget, greedy = int(os.environ["HEADRACE_GPU_MEMORY_BYTES"]), t.params["number"] == 0
    met = meet(Path(str(t.params["folder"])))
    held = []
    weight = torch.randn(64, 64, device=device)
    for _ in t.steps():
        if greedy:
            held.append(take(budget // 4, device, held, budget))
        weight = torch.tanh(weight @ weight)
        t.report(loss=float(weight.abs().mean()), met=met, budget=budget)


def meet(folder: Path) -> int:
    """Waits until TOGETHER trials have started, and returns how many there are."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + MEET_S
    while len(list(folder.iterdir())) < TOGETHER and time.monotonic() < deadline:
        time.sleep(0.05)  # the others are in processes of their own
    return len(list(folder.iterdir()))


def take(count: int, device: str, held: list[torch.Tensor], budget: int) -> torch.Tensor:
    if device == "cpu" and (len(held) + 1) * count >= budget:
        raise torch.OutOfMemoryError(f"{len(held)} times {count} bytes, of {budget}")
    return torch.zeros(count if device == "cuda" else 1, dtype=torch.uint8, device=device)
