"""Draws a profile recorded by py-spy as a flame graph, and lists where most of the time goes.

    py-spy record --pid SCHEDULER --duration 8 --format raw --output profile.txt
    python benchmarks/scheduler/draw_profile.py profile.txt benchmarks/results/profile.svg

Frames narrower than 0.4% of the samples are left out.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of the backend

NARROWEST = 0.004
SKIPPED = ("typer/", "_click/", "runpy", "<module>", "asyncio/runners", "base_events")
"""The frames up to the event loop, the same under every frame."""


@dataclass(slots=True)
class Frame:
    """A function at a place in the stacks, with the samples in it and below."""

    samples: int = 0
    callees: "dict[str, Frame]" = field(default_factory=dict)


def read(path: Path) -> Frame:
    """Fold the stacks into a tree."""
    root = Frame()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        at = root
        at.samples += int(count)
        for name in stack.split(";"):
            if any(part in name for part in SKIPPED):
                continue
            at = at.callees.setdefault(name.rsplit(":", 1)[0], Frame())
            at.samples += int(count)
    return root


def draw(root: Frame, path: Path) -> None:
    """Draw the tree, the root at the bottom."""
    figure, axes = plt.subplots(figsize=(16, 9), layout="constrained")
    colors = plt.get_cmap("YlOrBr")
    deepest = 0

    def place(frame: Frame, left: float, level: int) -> None:
        nonlocal deepest
        for name, callee in sorted(frame.callees.items()):
            width = callee.samples / root.samples
            if width >= NARROWEST:
                deepest = max(deepest, level)
                axes.barh(level, width, 0.92, left, color=colors(0.15 + 0.5 * width**0.4), linewidth=0)
                letters = int(width * 230)
                if letters > 3:
                    label = name.replace("headrace_services/scheduler/", "")
                    axes.text(left + 0.001, level, label[:letters], va="center", fontsize=5.5, clip_on=True)
                place(callee, left, level + 1)
            left += width

    place(root, 0.0, 0)
    axes.set(xlim=(0, 1), ylim=(-0.5, deepest + 0.5), yticks=[], xlabel="share of the samples")
    axes.set_title(f"The scheduler under load: {root.samples} samples", fontsize=11)
    figure.savefig(path)


def main() -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recorded", type=Path)
    parser.add_argument("drawing", type=Path)
    options = parser.parse_args()
    draw(read(options.recorded), options.drawing)


if __name__ == "__main__":
    main()
