"""A training job of two stages on gloo, with unmodified DeepSpeed. DeepSpeed is imported once; each run forks its
ranks.

It reads a run as a line of JSON from its input, and writes a line with the ranks' process ids, then one with their
exit statuses. A rank that fails takes the others with it.
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch._dynamo  # an optimizer imports it
from deepspeed.pipe import PipelineModule

from headrace.ports import any_port
from headrace_torch.bubbles import attach

WIDTH = 32


class Slow(torch.nn.Module):
    """A layer that sleeps for a given time: a stage without a core of its own."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.inner = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tanh(self.inner(x))


def engine(run: dict[str, object]) -> deepspeed.PipelineEngine:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # it would be compiled now
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    pace = float(run.get("pace", 0))
    layers = [Slow(pace), Slow(pace), Slow(2 * pace), torch.nn.Linear(WIDTH, 1)]
    net = PipelineModule(
        layers=layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": int(run.get("micro_batches", 4)),
        "steps_per_print": 10**6,
    }
    return deepspeed.initialize(
        model=net, config=config, optimizer=torch.optim.AdamW(net.parameters(), lr=3e-3)
    )[0]


def train(run: dict[str, object]) -> dict[str, object]:
    """One rank's life: returns every loss as its bits, and the length of each step in seconds."""
    made = engine(run)
    attached = attach(made, job=str(run["job"])) if run.get("hook", True) else None
    mean = torch.Generator().manual_seed(3)
    batches = [(x, x.sum(1, keepdim=True).sin()) for x in torch.randn(3, 4, WIDTH, generator=mean)]
    losses, seconds = [], []
    told, until = Path(str(run["folder"])) / f"rank{os.environ['RANK']}.steps", int(run["steps"])
    for step in range(until):
        if Path(str(run["folder"]), "enough").exists() and not step % 10:
            break
        if step == run.get("change_at"):
            made.set_train_batch_size(4 * int(run["change_to"]))
        if step == run.get("break_at"):
            attached.hook.words.release()  # an unforeseen failure
        if step == run.get("reshape_at"):  # as with a different sequence length
            batches = [(torch.cat([x, x]), torch.cat([y, y])) for x, y in batches]
            made.reset_activation_shape()
        if step == run.get("pause_at") and os.environ["RANK"] == "1":
            time.sleep(8 * max(seconds[-60:]))
        data = iter([batches[(step + k) % 3] for k in range(made.micro_batches)])
        began = time.monotonic()
        losses.append(float(made.train_batch(data_iter=data)).hex())
        seconds.append(time.monotonic() - began)
        if step == run.get("evaluate_at"):
            losses.append(float(made.eval_batch(iter(batches * 4))).hex())
        told.write_text(str(step + 1))
    return {
        "losses": losses,
        "seconds": seconds,
        "active": attached is not None and attached.active,
        "why": "" if attached is None else attached.why_not or attached.hook.why,
        "own": "_INSTRUCTION_MAP" in made.__dict__,
    }


def rank(number: int, ranks: int, port: int, run: dict[str, object]) -> None:
    """Runs in a forked process, and exits it."""
    folder = Path(str(run["folder"]))
    log = os.open(folder / f"rank{number}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(ranks)}
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HEADRACE_BUBBLES": str(run["place"]),
    }
    try:
        told = train(run)
        (folder / f"rank{number}.json").write_text(json.dumps(told))
        os._exit(0)
    except BaseException:  # noqa: BLE001  printed, as an interpreter prints it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def start(run: dict[str, object]) -> list[int]:
    port = any_port()
    pids = []
    for number in range(2):
        pid = os.fork()
        if not pid:
            rank(number, 2, port, run)
        pids.append(pid)
    return pids


def main() -> None:
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        pids = start(json.loads(line))
        print(json.dumps(pids), flush=True)
        codes: dict[int, int] = {}
        while len(codes) < len(pids):
            pid, status = os.wait()
            codes[pid] = os.waitstatus_to_exitcode(status)
            if status:
                for other in set(pids) - set(codes):
                    os.kill(other, signal.SIGKILL)
        print(json.dumps([codes[pid] for pid in pids]), flush=True)


if __name__ == "__main__":
    main()
