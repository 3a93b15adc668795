"""One rank that trains an emitted plan on the CPU. Arguments: the plan's folder, and where to write what happened."""

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch

WIDTH, WORDS, LENGTH, STEPS = 32, 64, 16, 12
calls: dict[int, int] = {}


class Counted(torch.nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def count(self) -> None:
        if torch.is_grad_enabled():
            calls[self.index] = calls.get(self.index, 0) + 1


class Embedding(Counted):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.table = torch.nn.Embedding(WORDS, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.count()
        return self.table(tokens)


class Block(Counted):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count()
        q, k, v = self.query(self.norm(x)).chunk(3, dim=-1)
        return x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class Head(Counted):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.words = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count()
        return self.words(x)


def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


def main(folder: Path, out: Path) -> None:
    torch.manual_seed(1)
    # A faster all-reduce in shared memory, which DeepSpeed would compile now for a minute; gloo's own does here.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed(dist_backend="gloo")
    spec = importlib.util.spec_from_file_location("pipeline", folder / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    count = emitted.BOUNDARIES[-1]
    kinds = [Embedding, *[Block] * (count - 2), Head]
    layers = [lambda kind=kind, index=index: kind(index) for index, kind in enumerate(kinds)]
    net = emitted.PlannedPipeline(layers=layers, loss_fn=loss)
    config = json.loads((folder / "deepspeed.json").read_text())
    engine, *_ = deepspeed.initialize(
        model=net, config=config, optimizer=torch.optim.AdamW(net.parameters(), lr=3e-3)
    )
    size = config["train_micro_batch_size_per_gpu"]
    batch = torch.randint(WORDS, (size, LENGTH + 1))
    losses = []
    for _ in range(STEPS):
        data = iter([(batch[:, :-1], batch[:, 1:])] * config["gradient_accumulation_steps"])
        losses.append(float(engine.train_batch(data_iter=data)))
    held = sorted(module.index for module in net.modules() if isinstance(module, Counted))
    told = {"held": held, "calls": calls, "losses": losses, "micro_batches": engine.micro_batches}
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
