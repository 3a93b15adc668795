"""How queries that start at zero move under SGD: by our check's measure, and by the `mup` package's own check.

Run it:  python benchmarks/hydro_transfer/zero_queries.py     (5 minutes on one core; needs mup)
It writes zero_queries.json to ../results, for two heads that get wider and for more and more heads of a fixed
width. For each step it has the slope of the queries' change over widths, with the standard error over seeds, n* of
A + B/n, and what that form and a power law, fitted to all widths but the widest, predict for the widest.
docs/explanation/hydro.md derives why slopes are not 0 if heads get wider, and closer to 0 if they do not. Our
seeds are not those of the check's record.
"""

import json
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from mup import MuReadout, set_base_shapes
from mup.coord_check import get_coord_data
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from training import GPT, HERE, Text

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check import fixed_targets
from headrace_torch.hydro.coordinate_check.measure import train_step

BASE, RATE, ROWS = 1024, 0.1, 16
WIDTHS, FIRST_SEED, SEEDS = (64, 128, 256, 512), 100, 8
STEPS = (2, 8, 16, 24, 32, 40, 48)
# By how the model grows, the width of its heads; None is as wide as two heads can be.
HEAD_WIDTHS = {"wider heads": None, "more heads": 32}
Changes = dict[int, list[list[float]]]  # by step: a row per width, a value per seed


class MupAttention(nn.Module):
    """Like the example's, with mup's scores over d, equal to torch's at the base."""

    def __init__(self, width: int, head_width: int | None) -> None:
        super().__init__()
        self.heads = 2 if head_width is None else width // head_width
        self.base = BASE // 2 if head_width is None else head_width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.base**0.5 / q.shape[-1])
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def mup_gpt(width: int, head_width: int | None) -> nn.Module:
    """The example's GPT with one block, with mup's readout and attention and its base shapes set."""

    def made(width: int) -> Any:
        model: Any = GPT(width, depth=1)
        model.blocks[0].attention = MupAttention(width, head_width)
        model.readout = MuReadout(width, 256, bias=False, readout_zero_init=True)
        return model

    model: nn.Module = made(width)
    set_base_shapes(model, made(BASE), delta=made(2 * BASE))
    for name, parameter in model.named_parameters():
        if "query" in name:
            nn.init.zeros_(parameter)
    return model


def by_mup(text: Tensor, head_width: int | None) -> Changes:
    """`mup.coord_check`'s mean size of the queries; they start at zero, so their size is their change."""
    labels = torch.randint(256, (text.numel(),), generator=torch.Generator().manual_seed(0))
    found = get_coord_data(
        {width: partial(mup_gpt, width, head_width) for width in WIDTHS},
        [(text, labels)],
        mup=True,
        optimizer="sgd",
        lr=RATE,
        nsteps=max(STEPS) + 1,  # it records before a step
        nseeds=SEEDS,
        cuda=False,
        flatten_output=True,
        show_progress=False,
        filter_module_by_name=lambda name: name.endswith("attention.query"),
    )
    return {
        step: [list(found[(found.t == step + 1) & (found.width == width)].l1) for width in WIDTHS]
        for step in STEPS
    }


def by_ours(text: Tensor, head_width: int | None) -> Changes:
    """The check's own steps and loss."""
    factory = partial(GPT, depth=1, head_width=head_width)
    surrogate = hydro.shrink(factory, width=WIDTHS[0], target={"width": BASE}, inputs=text)
    loss = fixed_targets()
    changes: Changes = {step: [[] for _ in WIDTHS] for step in STEPS}
    for at, width in enumerate(WIDTHS):
        member = surrogate.at(width=width)
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            model: Any = member.build(seed)
            optimizer = member.optimizer(model, "sgd", lr=RATE)
            sizes: list[float] = []  # from the pass with which each step starts
            model.blocks[0].attention.query.register_forward_hook(
                lambda _layer, _inputs, out, to=sizes: to.append(float(out.detach().abs().mean()))
            )
            for _ in range(max(STEPS) + 1):
                train_step(model, optimizer, (text,), loss)
            for step in STEPS:
                changes[step][at].append(sizes[step])
    return changes


def summary(changes: Changes) -> dict[str, Any]:
    """Slopes and fits, by step."""
    logs = np.log(np.array(WIDTHS, dtype=float))
    out = {}
    for step, rows in changes.items():
        sizes = np.log(np.array(rows)).T  # (seeds, widths)
        slopes = np.array([np.polyfit(logs, one, 1)[0] for one in sizes])
        mean = sizes.mean(0)
        stays, fades = curve(WIDTHS, mean)
        held_out = curve(WIDTHS[:-1], mean[:-1])
        power = np.polyfit(logs[:-1], mean[:-1], 1)
        at_end = held_out[0] + held_out[1] / WIDTHS[-1]
        out[str(step)] = {
            "slope": round(float(slopes.mean()), 3),
            "standard_error": round(float(slopes.std(ddof=1)) / math.sqrt(SEEDS), 3),
            "n_star": round(fades / stays) if stays > 0 else None,
            "widest_less_curve": round(float(mean[-1]) - 0.5 * math.log(at_end), 3) if at_end > 0 else None,
            "widest_less_power": round(float(mean[-1] - np.polyval(power, logs[-1])), 3),
        }
    return out


def curve(widths: tuple[int, ...], logs: Any) -> tuple[float, float]:
    """A and B of A + B/n, fitted to mean squares with equal weights for relative errors."""
    squares, inverse = np.exp(2 * logs), 1 / np.array(widths, dtype=float)
    rows = np.stack([1 / squares, inverse / squares], 1)
    stays, fades = np.linalg.lstsq(rows, np.ones(len(widths)), rcond=None)[0]
    return float(stays), float(fades)


def main() -> None:
    """Both ways of growing, with both checks."""
    torch.set_num_threads(1)
    text = Text().batch(0, ROWS)[0]
    record: dict[str, Any] = {"widths": WIDTHS, "seeds": SEEDS, "rate": RATE, "rows": ROWS, "base": BASE}
    for way, head_width in HEAD_WIDTHS.items():
        record[way] = {}
        for name, run in (("ours", by_ours), ("mup", by_mup)):
            record[way][name] = summary(run(text, head_width))
            for step, one in record[way][name].items():
                print(f"{way}, {name}, after step {step}: {one}", flush=True)
    (HERE.parent / "results" / "zero_queries.json").write_text(
        json.dumps(record, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
