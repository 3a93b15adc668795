"""A small GPT that learns to write Python from a text that every machine has: Python's own standard library.

Run it by hand:  python train.py --depth 4
Tune it:         headrace run study.yaml

A step is 150 iterations, far less than an epoch: a trial is paused and resumed in the middle of its data.
"""
# ruff: noqa: N803, N806 - a tensor's name ends in its shape: B batch, L length, D width, H heads, K width of a head, V bytes

import math
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from headrace import trial

DEFAULTS = {"lr": 1e-3, "width": 96, "depth": 2, "dropout": 0.1, "weight_decay": 0.1}
STEPS = 8
ITERATIONS = 150  # per step
WARMUP = 100  # iterations
BATCH_SIZE = 16
CONTEXT = 128  # bytes
HEADS = 4


def load_text() -> tuple[bytes, bytes]:
    """The standard library's top-level modules; every tenth file is for validation, so nothing is in both."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    train = b"".join(file.read_bytes() for number, file in enumerate(files) if number % 10)
    val = b"".join(file.read_bytes() for number, file in enumerate(files) if not number % 10)
    return train, val


def windows(text: bytes) -> Tensor:
    """The text in rows of one byte more than the context: inputs and, shifted by one, targets."""
    count = (len(text) - 1) // CONTEXT
    flat = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return flat[: count * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)


def unigram_bits(text: bytes) -> float:
    """Bits per byte of a model that knows only how often each byte occurs."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


class Block(nn.Module):
    """Attention to earlier bytes, then a two-layer perceptron; both are added to the stream."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        qkv_3BHLK = (
            self.qkv(self.norm_attention(x_BLD)).view(B, L, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        )
        dropout = self.dropout if self.training else 0.0
        mixed_BHLK = scaled_dot_product_attention(*qkv_3BHLK, is_causal=True, dropout_p=dropout)
        x_BLD = x_BLD + self.drop(self.attention_out(mixed_BHLK.transpose(1, 2).reshape(B, L, D)))
        return x_BLD + self.drop(self.mlp_out(gelu(self.mlp_in(self.norm_mlp(x_BLD)))))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text_BL: Tensor) -> Tensor:
        positions_L = torch.arange(text_BL.shape[1], device=text_BL.device)
        x_BLD = self.blocks(self.bytes(text_BL) + self.positions(positions_L))
        return self.norm(x_BLD) @ self.bytes.weight.T  # the embedding, used both ways


def loss_of(model: GPT, rows: Tensor) -> Tensor:
    """The mean cross-entropy of each byte given those before it, in nats."""
    logits_BLV = model(rows[:, :-1])
    return cross_entropy(logits_BLV.flatten(0, 1), rows[:, 1:].flatten())


def train(t: trial.Trial) -> None:
    """Train one configuration, from the first step or from where it was paused."""
    torch.set_num_threads(t.cpus)  # other trials use the other cores
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text, val_text = load_text()
    rows, val_rows = windows(text).long(), windows(val_text)[::16].long().to(device)
    print(f"{len(text):,} bytes to learn from, {unigram_bits(val_text):.3f} bits per byte by frequency alone")

    model = GPT(t.params["width"], t.params["depth"], t.params["dropout"]).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.params["lr"], weight_decay=t.params["weight_decay"], betas=(0.9, 0.95)
    )
    total = (
        t.max_steps * ITERATIONS
    )  # the schedule spans the whole budget, however early this trial is stopped

    def warmup_then_cosine(iteration: int) -> float:
        if iteration < WARMUP:
            return (iteration + 1) / WARMUP
        return 0.5 * (1 + math.cos(math.pi * (iteration - WARMUP) / (total - WARMUP)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_cosine)
    batches = trial.ResumableBatches(len(rows), BATCH_SIZE, seed=t.seed)
    t.track(model=model, optimizer=optimizer, lr_scheduler=scheduler, batches=batches)

    for _step in t.steps():
        model.train()
        for batch in batches.take(ITERATIONS):
            optimizer.zero_grad()
            loss = loss_of(model, rows[batch].to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()

        model.eval()
        with torch.no_grad():
            val_loss = torch.stack([loss_of(model, part) for part in val_rows.split(64)]).mean()
        t.report(bits_per_byte=val_loss / math.log(2), train_bits_per_byte=loss / math.log(2))


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=STEPS)
