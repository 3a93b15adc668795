"""What 1 to 16 plain training processes do on one card, all together: what users would do instead of fusing.

Run it:  python benchmarks/gpu/sharing_speed.py --how time-sliced --how mps
         python benchmarks/gpu/sharing_speed.py --device cpu --how time-sliced     (the code, on a CPU)

Each process trains ResNet-18 at scale 8 on CIFAR's shape, in bfloat16, with batches of 256. `make gpu` runs it and
keeps the figures; by itself it only prints them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import BaseContext

import gpu_paths  # noqa: F401  the folders of what follows
import torch
from fuse_throughput_cuda import FULL, SMALL, Size, Step, autocast_loss, batch_on, one_alone
from gpu_sharing import WAYS, UnavailableError, asked
from gpu_steppers import StepperError, pool
from kit_lines import Line, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many processes, and for how long each number of them is measured."""

    counts: tuple[int, ...]
    seconds: float
    size: Size


PLANS = {
    "cuda": Plan(counts=(1, 2, 4, 8, 16), seconds=3.0, size=replace(FULL, rows=256)),
    "cpu": Plan(counts=(1, 2), seconds=0.1, size=SMALL),
}


def plain(device: torch.device, *, size: Size) -> Step:
    """A training step of one process."""
    return one_alone(batch_on(device, size), autocast_loss, device, size)


def measure(how: str, device: str, plan: Plan, context: BaseContext | None = None) -> None:
    """Measures one way of sharing, for each number of processes."""
    model = f"ResNet-18, bfloat16, batch {plan.size.rows}, {how}"
    one = 0.0
    try:
        with (
            WAYS[how]() as env,
            pool(
                partial(plain, size=plan.size),
                max(plan.counts),
                torch.device(device),
                env=env,
                context=context,
            ) as programs,
        ):
            programs.wait()
            for count in plan.counts:
                programs.begin(count, plan.seconds)
                together = sum(programs.rates(count))
                at = f"{model}, processes: {count}"
                say(Line(name="all together", at=at, value=together, unit="steps a second"))
                one = one or together
                say(Line(name="times one alone", at=at, value=together / one))
    except UnavailableError as error:
        say(Line(name="all together", at=model, outcome="skipped", why=str(error)))
    except StepperError as error:
        say(Line(name="all together", at=model, outcome="failed", why=str(error)))


def main(words: Sequence[str] | None = None) -> None:
    options = asked(__doc__, words)
    for how in options.how:
        measure(how, options.device, PLANS[options.device])


if __name__ == "__main__":
    main()
