"""One rank of the training job: a small GPT as a two-stage DeepSpeed pipeline on the CPU. `run.py` starts two
of them.

The only line that Headrace needs is `attach(engine)`.
"""
# ruff: noqa: N803, N806 - a tensor's name ends in its shape: B batch, L length, D width, H heads, V bytes

import argparse
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from headrace_torch.bubbles import attach

BYTES, ROWS, HEADS = 256, 8, 4


class Embed(nn.Module):
    """Bytes and their positions."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(context, width)

    def forward(self, x_BL: Tensor) -> Tensor:
        return self.bytes(x_BL) + self.places.weight[: x_BL.shape[1]]


class Block(nn.Module):
    """Attention to earlier bytes, then a two-layer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        qkv = self.qkv(self.norm_attention(x_BLD)).view(B, L, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x_BLD = x_BLD + self.out(mixed.transpose(1, 2).reshape(B, L, D))
        return x_BLD + self.mlp_out(gelu(self.mlp_in(self.norm_mlp(x_BLD))))


class Head(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.out(self.norm(x_BLD))


def loss(logits_BLV: Tensor, target_BL: Tensor) -> Tensor:
    return cross_entropy(logits_BLV.flatten(0, 1), target_BL.flatten())


def batches(context: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of the text that every machine has: Python's standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    rows = text[: (len(text) - 1) // context * context + 1].unfold(0, context + 1, context).long()
    generator = torch.Generator().manual_seed(1)
    while True:
        picked = rows[torch.randint(len(rows), (ROWS,), generator=generator)]
        yield picked[:, :-1], picked[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--job", default="gpt")
    parser.add_argument("--no-hook", action="store_true", help="train without the one line")
    parser.add_argument("--losses", type=Path, help="write each step's loss and length here")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # it would be compiled now
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    layers = [
        LayerSpec(Embed, options.width, options.context),
        *[LayerSpec(Block, options.width) for _ in range(options.blocks)],
        LayerSpec(Head, options.width),
    ]
    model = PipelineModule(layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform")
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": options.micro_batches,
        "steps_per_print": 10**6,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    if not options.no_hook:
        attach(engine, job=options.job)
    data, told = batches(options.context), []
    for step in range(options.steps):
        began = time.monotonic()
        value = float(engine.train_batch(data_iter=data))
        told.append(f"{value.hex()} {time.monotonic() - began:.6f}")
        if engine.global_rank == 0 and step % 50 == 0:
            print(f"gpt: step {step}, loss {value:.3f}", flush=True)
    if options.losses:
        options.losses.write_text("\n".join(told) + "\n")


if __name__ == "__main__":
    main()
