"""Model features that fusion may miss: each case compared with the same model under `torch.optim`, in float64.

    python benchmarks/hydro/yardstick.py [case ...] [--engine separate] [--record now]
    python benchmarks/hydro/yardstick.py --table     (the record as Markdown, nothing is run)

A case is refused (the error is printed), or its losses and parameters are compared with those of plain torch: the
factory's own module, stepped by `torch.optim`, on a copy of each batch. The greatest relative difference counts.
The plain run uses nothing of Hydro. `--record NAME` keeps the outcomes under a name in yardstick.json. The record
"before" is of the version whose probe did not know torch.optim yet:

    mkdir before && git archive ac8f84b~1 worker | tar -x -C before
    PYTHONPATH=before/worker python benchmarks/hydro/yardstick.py --record before
"""

import argparse
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro

STEPS, ROWS, WIDTH = 6, 8, 8


class Base(nn.Module):
    """Two layers; the cases change what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.double()

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.inside(x)))


class Hooked(Base):
    """A hook that scales a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inside.weight.register_hook(lambda grad: 3 * grad + 0.1)


def halve_columns(parameter: Tensor) -> None:
    """Keeps half of a weight from training."""
    assert parameter.grad is not None
    parameter.grad[:, :4].zero_()


class Accumulated(Base):
    """A hook that runs once the gradient is complete, and keeps a column from training."""

    def __init__(self) -> None:
        super().__init__()
        self.inside.weight.register_post_accumulate_grad_hook(halve_columns)


class Alternating(Base):
    """A second layer that every other step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.calls = nn.Linear(WIDTH, WIDTH).double(), 0

    def middle(self, h: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(h if self.calls % 2 else self.second(h))


class Routed(Base):
    """A second layer that a member uses or not, by its data and parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(WIDTH, WIDTH).double()

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.second(h) if h.sum() > 0 else h)


class Never(Base):
    """A layer that exists but is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(WIDTH, WIDTH).double()


class Listed(Base):
    """The forward pass reaches a registered parameter through a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = [self.inside.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(functional.linear(x, self.plain[0])))


class Unregistered(Base):
    """A layer in a plain list: torch.optim does not see it, but every seed draws a different one."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = [nn.Linear(WIDTH, WIDTH).double()]

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.plain[0](h))


class Attribute(Base):
    """A plain tensor attribute that every seed draws differently."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.randn(WIDTH, dtype=torch.float64)

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.gain * h)


class Counting(Base):
    """A running sum in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def middle(self, h: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.calls * h)


class Inplace(Base):
    """Works in place on its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(1.5))


class InplaceByMember(Base):
    """Works in place on its batch, with its own parameters."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.add_(self.inside.bias)
        return super().forward(x)


class Argument(Base):
    """A factory's argument that no tensor holds."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.slope = slope

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.slope * h)


class Sparse(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, WIDTH, sparse=True), nn.Linear(WIDTH, 4)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words((x[:, 0] * 2).long().clamp(0, 7)))


def old_weight_norm() -> nn.Module:
    """A layer whose weight is a tensor with a history, which Python cannot copy."""
    model = Base()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.inside)
    model.inside(torch.zeros(1, WIDTH, dtype=torch.float64))
    return model


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return functional.cross_entropy(model(batch[0]), batch[1])


class Metrics:
    """A loss that stores what it sees."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        self.seen.append((out.argmax(-1) == batch[1]).double().mean())
        return functional.cross_entropy(out, batch[1])


class Nan:
    """A loss that is NaN for the member with the smallest bias."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        return torch.where(model.head.bias[0] > 0, loss, loss * torch.nan)


@dataclass(frozen=True)
class Case:
    """A model, a loss, and how many seeds share it."""

    make: Callable[..., nn.Module]
    loss: Callable[[], Any] = lambda: mean_loss
    members: tuple[dict[str, Any], ...] = ({"lr": 0.05, "seed": 1}, {"lr": 0.02, "seed": 2})
    optimizer: str = "adamw"


CASES: dict[str, Case] = {
    "hook on a gradient": Case(Hooked),
    "hook after accumulation": Case(Accumulated),
    "layer of every other step": Case(Alternating),
    "layer of some members": Case(Routed),
    "layer of no step": Case(Never),
    "parameter in a list": Case(Listed),
    "layer in a plain list": Case(Unregistered),
    "counter in Python, rate 0": Case(Counting, members=({"lr": 0.0, "seed": 1}, {"lr": 0.0, "seed": 2})),
    "counter in Python": Case(Counting),
    "batch changed in place": Case(Inplace),
    "batch changed by member": Case(InplaceByMember),
    "factory's argument": Case(
        Argument, members=({"lr": 0.05, "model": {"slope": 0.5}}, {"lr": 0.05, "model": {"slope": 3.0}})
    ),
    "plain tensor attribute": Case(Attribute),
    "sparse embedding": Case(Sparse, optimizer="sgd"),
    "old weight norm": Case(old_weight_norm),
    "compiled module": Case(lambda: torch.compile(Base(), backend="eager")),
    "scripted module": Case(lambda: torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 4)).double())),
    "metrics kept by the loss": Case(Base, loss=Metrics),
    "nan in one member": Case(Base, loss=Nan),
}


def batches() -> list[tuple[Tensor, Tensor]]:
    """Two batches, in turn."""
    generator = torch.Generator().manual_seed(5)
    two = [
        (
            torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
            torch.randint(0, 4, (ROWS,), generator=generator),
        )
        for _ in range(2)
    ]
    return [two[step % 2] for step in range(STEPS)]


def alone(case: Case, member: dict[str, Any]) -> tuple[list[float], dict[str, Tensor]]:
    """Plain torch: the user's own run."""
    torch.manual_seed(member.get("seed", 0))
    model, loss_fn = case.make(**member.get("model", {})), case.loss()
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[case.optimizer]
    optimizer = kind(model.parameters(), lr=member["lr"])
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {name: one.detach() for name, one in model.named_parameters()}


def apart(one: Tensor, two: Tensor) -> float:
    """The greatest difference, relative to the largest number; infinite if only one of them is a number."""
    if not torch.equal(one.isnan(), two.isnan()):
        return float("inf")
    size = one.nan_to_num().abs().max().clamp_min(1e-300)
    return float((one - two).nan_to_num().abs().max() / size)


@dataclass(frozen=True)
class Outcome:
    """The comparison with plain torch: the greatest relative differences, and the group's messages; or why it was
    refused."""

    engine: str = ""
    losses: float = 0.0
    parameters: float = 0.0
    reason: str = ""
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"refused: {self.refused}"
        return f"{self.engine:<8} losses {self.losses:.1e}  parameters {self.parameters:.1e}; {self.reason}"


def run(case: Case, engine: str = "auto") -> Outcome:
    """Trains the members in a group, and each alone."""
    loss_fn = case.loss()
    try:
        group = hydro.fuse(case.make, case.members, case.optimizer, engine=engine, workers=0)
        found = [group.step(batch, loss_fn) for batch in batches()]
    except hydro.HydroError as error:
        return Outcome(refused=f"{type(error).__name__}: {error}")
    expected = [alone(case, member) for member in case.members]
    parameters = max(
        apart(value, group.member_state(i)["model"][name])
        for i, (_, values) in enumerate(expected)
        for name, value in values.items()
    )
    return Outcome(
        engine=group.engine or "",
        losses=apart(torch.tensor([one[0] for one in expected], dtype=torch.float64).T, torch.stack(found)),
        parameters=parameters,
        reason=group.report.reason if group.report else "",
    )


def cell(found: Mapping[str, Any]) -> str:
    """One outcome as a table cell."""
    if found["refused"]:
        kind, _, text = found["refused"].partition(": ")
        return f"{'refused' if kind.endswith('Error') else kind}: {text.partition(':')[0]}"
    numbers = (f"{found[one]:.0e}" for one in ("losses", "parameters"))
    return ", ".join("0" if one == "0e+00" else one for one in numbers)


def table(record: Mapping[str, Mapping[str, Any]]) -> str:
    """The record as Markdown: losses and parameters, before and now."""
    lines = ["| case | before: losses, parameters | now | why |", "|---|---|---|---|"]
    for name, now in record["now"].items():
        why = "" if now["refused"] else now["reason"]
        lines.append(f"| {name} | {cell(record['before'][name])} | {cell(now)} | {why} |")
    return "\n".join(lines)


def main() -> None:
    """Prints one line per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--record", metavar="NAME")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    path = Path(__file__).parents[1] / "results" / "yardstick.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if given.table:
        print(table(record))
        return
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if not given.cases or name in given.cases:
            try:
                outcome = run(case, given.engine)
            except Exception as error:  # noqa: BLE001  what is not refused by name is told too
                first = str(error).partition("\n")[0]
                outcome = Outcome(refused=f"raised {type(error).__name__}, of torch: {first[:60]}")
            print(f"{name:<26} {outcome}", flush=True)
            record.setdefault(given.record, {})[name] = asdict(outcome)
    if given.record:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
