"""The processor time of a save and of the store's part of a report, for a machine too busy to measure wall time.

    python benchmarks/worker/checkpoint_parts.py [--megabytes 256] [--rounds 3] [--other /dev/shm]

The trial's save and the directory store's `put`, in one process, in turns: with hard links, with hard links
refused, and with the store on another file system, in memory. It prints processor seconds, and wall seconds after
the slash.
"""

import argparse
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.checkpoints import CheckpointMeta, directory
from headrace.trial import checkpoint

WAYS = ("linked", "copied", "memory")
took: dict[str, str] = {}


def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Records the time of a part."""

    def call(*args: Any, **options: Any) -> Any:
        began, busy = time.monotonic(), time.thread_time()
        result = work(*args, **options)
        took[name] = f"{time.thread_time() - busy:.2f}/{time.monotonic() - began:.2f}"
        return result

    return call


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    root, other = Path(tempfile.mkdtemp(prefix="hr-parts-")), Path(tempfile.mkdtemp(dir=options.other))
    torch.set_num_threads(1)
    model = {str(number): torch.full((1 << 22,), 0.37) for number in range(options.megabytes // 16)}
    part = {"rank": 0, "world_size": 1, "step": 1, "tracked": {"model": model}, "files": []}
    link = os.link

    def maybe_link(source: Path, target: Path) -> None:
        if "copied" in target.parts:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target)

    with pytest.MonkeyPatch.context() as patch:
        for function in ("_link_or_copy", "entry_of", "flush_below"):
            patch.setattr(directory, function, timed(function, getattr(directory, function)))
        patch.setattr(os, "link", maybe_link)
        try:
            for number in range(options.rounds):
                for way in WAYS:
                    store = directory.DirectoryStore((other if way == "memory" else root) / way)
                    store.set_up("0123456789abcdef", used=False)
                    took.clear()
                    folder = timed("save", checkpoint.write)(root / f"step-{number}-{way}", part)
                    meta = CheckpointMeta(
                        trial="studies/s/trials/1", name="a", step=1, milestone=1, attempt=1
                    )
                    timed("put", store.put)(folder, meta)
                    timed("delete", shutil.rmtree)(folder)
                    print(f"round {number + 1}, {way}: {took}", flush=True)
        finally:
            shutil.rmtree(root)
            shutil.rmtree(other)


if __name__ == "__main__":
    main()
