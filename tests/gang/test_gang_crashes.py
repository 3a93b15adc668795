"""A process that is killed at any line of a save leaves a complete checkpoint or none."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from headrace import durable
from headrace.checkpoints import CheckpointMeta, directory
from headrace.trial import checkpoint

WEIGHTS = torch.arange(8.0)
SAVES = {module.__file__ for module in (checkpoint, directory, durable)}
# A kill between `open` and `with` leaves the file to the collector; a real kill leaves it to the kernel.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class KilledError(BaseException):
    """Not caught by any handler in a save."""


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Ends the running save at this line of the saving code, counted from the first line that runs."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in SAVES:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                raise KilledError
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def part(rank: int, world: int, step: int) -> dict[str, Any]:
    return {"rank": rank, "world_size": world, "step": step, "tracked": {"w": WEIGHTS + step}, "files": []}


def every_line(
    prepare: Callable[[], None], save: Callable[[], object], found: Callable[[], int | None]
) -> set[int | None]:
    """The results after a kill at each line; the last one is without a kill."""
    seen: list[int | None] = []
    for number in count(1):
        prepare()
        try:
            with killed_at(number):
                save()
        except KilledError:
            seen.append(found())
            continue
        break
    assert number > 15
    assert found() == 2
    return set(seen)


def step_in(folder: Path, world: int) -> int | None:
    """The step of the checkpoint; None if there is none."""
    try:
        parts = [checkpoint.read(folder, rank) for rank in range(world)]
    except (FileNotFoundError, checkpoint.IncompleteError):
        return None
    for one in parts:
        assert torch.equal(one["tracked"]["w"], WEIGHTS + one["step"])
    (step,) = {one["step"] for one in parts}
    return int(step)


def test_a_process_alone(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        place = checkpoint.files_of(folder, "own")
        place.mkdir(parents=True)
        (place / "shard").write_text("x")

    folder = tmp_path / "step-2"
    found = every_line(
        lambda: (checkpoint.write(folder, part(0, 1, 1)), None)[1],
        lambda: checkpoint.write(folder, part(0, 1, 2), fill=fill),
        lambda: step_in(folder, 1),
    )
    assert found <= {1, 2, None}
    assert {1, 2} <= found


def test_a_rank_of_a_gang(tmp_path: Path) -> None:
    folder = tmp_path / "step-2"

    def prepare() -> None:
        folder.mkdir(exist_ok=True)
        checkpoint.write_part(folder, part(0, 2, 2), rank=0)
        (folder / "rank-1.pt").unlink(missing_ok=True)

    found = every_line(
        prepare,
        lambda: checkpoint.write_part(folder, part(1, 2, 2), rank=1),
        lambda: step_in(folder, 2),
    )
    assert found == {None, 2}


def test_a_store(tmp_path: Path) -> None:
    store = directory.DirectoryStore(tmp_path / "store")
    store.set_up("0123456789abcdef", used=False)
    meta = CheckpointMeta(trial="studies/s/trials/3", name="a", step=1, milestone=1, attempt=1)
    for step in (1, 2):
        checkpoint.write(tmp_path / f"step-{step}", part(0, 1, step))

    def found() -> int | None:
        names = store.list(meta.trial)
        assert names in ([], ["a"])
        return step_in(tmp_path / "store" / meta.trial / "a", 1) if names else None

    seen = every_line(
        lambda: (store.put(tmp_path / "step-1", meta), None)[1],
        lambda: store.put(tmp_path / "step-2", meta),
        found,
    )
    assert seen == {1, 2, None}


def test_another_rank_s_part_is_missed_whoever_reads(tmp_path: Path) -> None:
    checkpoint.write_part(tmp_path, part(1, 2, 2), rank=1)
    with pytest.raises(checkpoint.IncompleteError, match="rank 0 has no part"):
        checkpoint.read(tmp_path, 1)
