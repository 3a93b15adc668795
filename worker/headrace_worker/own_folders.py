"""The folders that a process has to itself: shipped code, unpacked (`code_cache`), and a TMPDIR (`quarters`).

A standby process already has its own. So two launches are alike if they differ only in these.
"""

import uuid
from dataclasses import replace
from pathlib import Path

from headrace_worker.code_cache import unpack
from headrace_worker.disk import clear_away
from headrace_worker.launch import Launch


def has_some(launch: Launch) -> bool:
    """Whether the process has any."""
    return launch.archive is not None or launch.quarters is not None


def make(launch: Launch) -> None:
    """Makes them. Raises `OSError`."""
    if launch.archive is not None:
        unpack(launch.archive, Path(launch.working_dir), launch.user)
    if launch.quarters is not None:
        launch.quarters.make(launch.user)


def clear(launch: Launch) -> None:
    """Deletes them; none of the process is left."""
    if launch.archive is not None:
        clear_away(Path(launch.working_dir))
    if launch.quarters is not None:
        launch.quarters.clear()


def names(launch: Launch) -> list[str]:
    """The folders."""
    code = [] if launch.archive is None else [launch.working_dir]
    return code if launch.quarters is None else [*code, str(launch.quarters.tmp)]


def of_another_process(launch: Launch) -> Launch:
    """The same launch in new folders of its own."""
    if launch.archive is not None:
        own = Path(launch.working_dir).with_name(f"code-{uuid.uuid4().hex[:12]}")
        launch = replace(launch, working_dir=str(own))
    if (held := launch.quarters) is not None:
        moved = held.of_another_process()
        env = {
            name: str(moved.tmp) if name == "TMPDIR" and value == str(held.tmp) else value
            for name, value in launch.env.items()
        }
        launch = replace(launch, quarters=moved, env=env)
    return launch


def without(launch: Launch) -> Launch:
    """A launch without its own folders."""
    if launch.archive is not None:
        launch = replace(launch, working_dir="")
    if (held := launch.quarters) is not None:
        env = {
            name: value for name, value in launch.env.items() if name != "TMPDIR" or value != str(held.tmp)
        }
        launch = replace(launch, quarters=replace(held, tmp=Path()), env=env)
    return launch
