"""The trial: several configurations of a small network on handwritten digits, fused into one, trained through a gate.

HEADRACE_BUBBLE_GATE names the stage during whose waits it works. Without it the same script trains at full speed.
"""

import argparse
import itertools
import signal
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from headrace_torch import hydro
from headrace_torch.bubbles import join

ROWS, WIDTH = 64, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10**9, help="at most; SIGTERM ends it before")
    parser.add_argument("--count", type=Path, help="write the steps made here, once in a while")
    options = parser.parse_args()
    leaving = []

    torch.manual_seed(1)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )
    rates = torch.logspace(-4, -1, options.members).tolist()
    members = [{"lr": rate} for rate in rates]
    generator = torch.Generator().manual_seed(2)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        picked = torch.randint(len(labels), (ROWS,), generator=generator)
        return images[picked], labels[picked]

    criterion = nn.CrossEntropyLoss()
    with hydro.fuse(model, members, optimizer="adam") as group:
        losses = group.step(batch(), criterion)  # it chooses its engine; then the gate's points go in
        told = time.monotonic()
        with join(group) as gate:

            def leave(*_: object) -> None:
                leaving.append(True)
                gate.leave()

            signal.signal(signal.SIGTERM, leave)
            for step in itertools.count(2):
                losses = 0.98 * losses + 0.02 * group.step(batch(), criterion)
                if options.count and time.monotonic() - told > 0.1:
                    told = time.monotonic()
                    new = options.count.with_suffix(".new")
                    new.write_text(f"{step} {told}")
                    new.replace(options.count)
                if leaving or gate.must_leave or step >= options.steps:
                    break
        best = int(losses.argmin())
        print(
            f"digits: {step} steps of {options.members} configurations, best lr {rates[best]:.2g} "
            f"with loss {float(losses[best]):.3f}; {gate.harvested_s:.1f} s of work in windows",
            flush=True,
        )


if __name__ == "__main__":
    main()
