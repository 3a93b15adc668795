"""A small GPT that finds its learning rate during training: four replicas explore around the schedule, and
converge.

Run it:  torchrun --nproc_per_node 4 train.py
Quicker: torchrun --nproc_per_node 4 train.py --steps 120

It reads the text that every machine has, Python's own standard library. First a sweep finds the best rate of a
plain OneCycle run, and reports the cost of finding it. Then OneCycle alone and OneCycle with HDET start from a
tenth of that rate, and from ten times that rate.
"""
# ruff: noqa: N803, N806 - a tensor's name ends in its shape: B batch, L length, D width, H heads, K width of a head

import argparse
import json
import sysconfig
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    Probe,
    SyncReport,
    draw_trajectory,
    learning_rates,
)

CONTEXT, WIDTH, HEADS, DEPTH = 32, 32, 2, 1  # bytes, features, attention heads, blocks
BATCH = 8  # rows per replica and step
SYNCS = 60
SWEEP = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SPREAD = 1 / 9


class Block(nn.Module):
    """Attention to earlier bytes, then a two-layer perceptron; both are added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp_in, self.mlp_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        qkv_3BHLK = (
            self.qkv(self.norm_attention(x_BLD)).view(B, L, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        )
        mixed_BHLK = scaled_dot_product_attention(*qkv_3BHLK, is_causal=True)
        x_BLD = x_BLD + self.attention_out(mixed_BHLK.transpose(1, 2).reshape(B, L, D))
        return x_BLD + self.mlp_out(gelu(self.mlp_in(self.norm_mlp(x_BLD))))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.bytes, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
            self.norm = nn.LayerNorm(WIDTH)
            for embedding in (self.bytes, self.positions):
                nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text_BL: Tensor) -> Tensor:
        x_BLD = self.blocks(self.bytes(text_BL) + self.positions(torch.arange(text_BL.shape[1])))
        return self.norm(x_BLD) @ self.bytes.weight.T


class Text:
    """Rows of the standard library: every tenth file is for validation, so nothing is in both."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.train = self._rows([file for number, file in enumerate(files) if number % 10])
        validation = self._rows([file for number, file in enumerate(files) if not number % 10])
        self.validation = validation[:: len(validation) // 512][:512]

    def batch(self, seed: int, step: int, rows: int, replica: int = 0, replicas: int = 1) -> Tensor:
        """One replica's part of a step's rows; all parts together are the same rows for any number of replicas."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        picked = torch.randint(len(self.train), (rows,), generator=generator)
        return self.train[picked.chunk(replicas)[replica]]

    @staticmethod
    def _rows(files: list[Path]) -> Tensor:
        text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
        return text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT).long()


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """The mean cross-entropy of each byte given those before it, in nats."""
    return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of a run."""

    method: str
    seed: int
    start_lr: float
    validation_loss: float
    rate_factor: float
    seconds: float
    diverged: bool
    reports: list[SyncReport] = field(default_factory=list)


def one_cycle(optimizer: AdamW, lr: float, steps: int) -> OneCycleLR:
    """The schedule of every run here; only its peak differs."""
    return OneCycleLR(optimizer, max_lr=lr, total_steps=steps + 1, div_factor=10, final_div_factor=10)


def optimizer_of(model: nn.Module, lr: float) -> AdamW:
    """The optimizer of every run here."""
    return AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)


def train_plain(text: Text, lr: float, seed: int, steps: int, replicas: int) -> Outcome:
    """OneCycle alone, in one process: a step on all replicas' rows is what data parallelism computes."""
    began = time.monotonic()
    model = GPT(seed)
    optimizer = optimizer_of(model, lr)
    scheduler = one_cycle(optimizer, lr, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, text.batch(seed, step, BATCH * replicas))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return outcome("OneCycle", model, text, lr, seed, 1.0, began)


def train_hdet(text: Text, lr: float, seed: int, steps: int) -> Outcome:
    """The same schedule under DDP, times what the replicas learn about it."""
    began = time.monotonic()
    rank, replicas = dist.get_rank(), dist.get_world_size()
    bare = GPT(seed)
    model = DistributedDataParallel(bare)
    optimizer = optimizer_of(model, lr)
    reports: list[SyncReport] = []
    probe_rows = text.batch(seed, 1_000_000, 64)  # a common batch that no step sees
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer, spread=SPREAD),
        sync_every=max(1, steps // SYNCS),
        score=Probe(model, lambda _sync: probe_rows, loss_of),
        seed=seed,
        on_sync=reports.append,
    )
    scheduler = HDETScheduler(one_cycle(optimizer, lr, steps), controller)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, text.batch(seed, step, BATCH * replicas, rank, replicas))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step(loss)
    result = outcome("HDET", bare, text, lr, seed, controller.value("lr/0"), began)
    result.reports = reports
    return result


@torch.no_grad()
def outcome(
    method: str, model: nn.Module, text: Text, lr: float, seed: int, factor: float, began: float
) -> Outcome:
    """Validates a model, and returns the outcome."""
    loss = float(loss_of(model, text.validation))
    return Outcome(
        method=method,
        seed=seed,
        start_lr=lr,
        validation_loss=loss,
        rate_factor=factor,
        seconds=time.monotonic() - began,
        diverged=not loss < 5.545,  # ln 256: worse than a uniform guess
    )


def main() -> None:
    """The sweep, then both methods from both starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("hdet-run"), help="folder of the plots and records")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, replicas = dist.get_rank(), dist.get_world_size()
    text = Text()

    # The sweep's runs are independent: each process takes its share of them.
    mine = [train_plain(text, lr, options.seed, options.steps, replicas) for lr in SWEEP[rank::replicas]]
    heard: list[list[Outcome]] = [[] for _ in range(replicas)]
    dist.all_gather_object(heard, mine)
    sweep = sorted((run for part in heard for run in part), key=lambda run: run.start_lr)
    best = min(sweep, key=lambda run: run.validation_loss)
    cost = sum(run.seconds for run in sweep)
    say(f"sweep of {len(sweep)} runs, {cost:.0f} s of training in all:")
    for run in sweep:
        mark = " (best)" if run is best else ""
        say(f"  OneCycle at {run.start_lr:.0e}: {run.validation_loss:.3f} nats per byte{mark}")

    for word, lr in (("too low", best.start_lr / 10), ("too high", best.start_lr * 10)):
        plain = train_plain(text, lr, options.seed, options.steps, replicas)
        ours = train_hdet(text, lr, options.seed, options.steps)
        say(f"ten times {word}, at {lr:.0e}:")
        say(
            f"  OneCycle {plain.validation_loss:.3f}, HDET {ours.validation_loss:.3f} after {ours.seconds:.0f} s"
        )
        say(f"  HDET's rate at every sixth sync: {trajectory(ours.reports)}")
        if rank == 0:
            options.out.mkdir(exist_ok=True)
            name = word.replace(" ", "-")
            draw_trajectory(
                ours.reports, options.out / f"{name}.svg", title=f"Learning rate, started ten times {word}"
            )
            lines = [report.to_json() for report in ours.reports]
            (options.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            summary = {key: value for key, value in asdict(ours).items() if key != "reports"}
            say(f"  {json.dumps(summary)}")
    dist.destroy_process_group()


def trajectory(reports: list[SyncReport]) -> str:
    """The rate in the middle of the fan, at every sixth sync."""
    return " ".join(f"{report.hyperparameters[0].center:.1e}" for report in reports[::6])


def say(line: str) -> None:
    """Prints on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
