"""One rank that trains an emitted plan on the CPU. Arguments: the plan's folder, and the file for the results."""

import functools
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


class Whole(torch.autograd.Function):
    """A part that every tensor rank has whole: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient, ctx.group), None


class Parts(torch.autograd.Function):
    """The sum of the tensor ranks' parts."""

    @staticmethod
    def forward(_, x, group):
        return summed(x, group)

    @staticmethod
    def backward(_, gradient):
        return gradient, None


def summed(x: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    whole = x.clone()
    torch.distributed.all_reduce(whole, group=group)
    return whole


class Counted(torch.nn.Module):
    def __init__(self, index: int, group: torch.distributed.ProcessGroup | None = None) -> None:
        super().__init__()
        self.index = index
        self.group = group
        self.ranks = torch.distributed.get_world_size(group) if group else 1

    def count(self) -> None:
        if torch.is_grad_enabled():
            calls[self.index] = calls.get(self.index, 0) + 1


class Embedding(Counted):
    def __init__(self, index: int, group: torch.distributed.ProcessGroup | None = None) -> None:
        super().__init__(index, group)
        self.table = torch.nn.Embedding(WORDS, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.count()
        return self.table(tokens)


class Block(Counted):
    def __init__(self, index: int, group: torch.distributed.ProcessGroup | None = None) -> None:
        super().__init__(index, group)
        mine = WIDTH // self.ranks
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query = torch.nn.Linear(WIDTH, 3 * mine, bias=False)
        self.out = torch.nn.Linear(mine, WIDTH, bias=False)
        for split in (self.query.weight, self.out.weight):
            split.model_parallel = self.group is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count()
        inner = self.norm(x)
        if self.group is not None:
            inner = Whole.apply(inner, self.group)
        q, k, v = self.query(inner).chunk(3, dim=-1)
        outer = self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + (outer if self.group is None else Parts.apply(outer, self.group))


class Head(Counted):
    def __init__(self, index: int, group: torch.distributed.ProcessGroup | None = None) -> None:
        super().__init__(index, group)
        self.words = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count()
        return self.words(x)


def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


def main(folder: Path, out: Path) -> None:
    torch.manual_seed(1)
    # DeepSpeed would now compile a faster shared-memory all-reduce for a minute; gloo's own is enough here.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed(dist_backend="gloo")
    spec = importlib.util.spec_from_file_location("pipeline", folder / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    count = emitted.BOUNDARIES[-1]
    kinds = [Embedding, *[Block] * (count - 2), Head]
    layers = [functools.partial(kind, index) for index, kind in enumerate(kinds)]
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
    told["ranks"] = sorted({module.ranks for module in net.modules() if isinstance(module, Counted)})
    told["optimizer"] = type(engine.optimizer).__name__
    told["gradients"] = str(engine.get_data_types()[1])
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
