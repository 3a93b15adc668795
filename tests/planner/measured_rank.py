"""One rank of a timed plan, compared with the same iterations in one process."""

import copy
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from measured_net import make
from torch import Tensor, nn

from headrace_torch import measuring

STEPS = 3


class FakeTrial:
    """The part of a trial that `time_plan` needs."""

    def __init__(self) -> None:
        self.params = {"split": "it"}
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.reported: list[float] = []

    def steps(self) -> Iterator[int]:
        yield from range(STEPS)

    def report(self, *, iteration_s: float) -> None:
        self.reported.append(iteration_s)


def alone(net: nn.Sequential, pieces: Sequence[Tensor]) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6)
    for _ in range(STEPS):
        for piece in pieces:
            (net(piece).square().mean() / len(pieces)).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    net, sample = make()
    trial = FakeTrial()
    plan = measuring.plan_of(trial)  # type: ignore[arg-type]
    size = plan.micro_batch * plan.micro_batches
    # Every data rank has its own inputs.
    inputs = [sample(size) for _ in range(plan.data)]
    before, wanted = copy.deepcopy(net), copy.deepcopy(net)
    alone(wanted, [piece for one in inputs for piece in one.tensor_split(plan.micro_batches)])
    measuring.time_plan(trial, lambda: (net, lambda _: inputs[trial.rank % plan.data]))  # type: ignore[arg-type]
    assert len(trial.reported) == STEPS
    assert min(trial.reported) > 0
    stage = trial.rank // plan.data
    for index in range(plan.boundaries[stage], plan.boundaries[stage + 1]):
        for mine, its, old in zip(
            net[index].parameters(), wanted[index].parameters(), before[index].parameters(), strict=True
        ):
            # Adam moves each number by about 1e-6 per step, so a wrong gradient would be off by as much.
            assert not torch.equal(mine, old)
            torch.testing.assert_close(mine - old, its - old, rtol=0, atol=2e-7)
    assert not dist.is_initialized()
    print("as one process")


main()
