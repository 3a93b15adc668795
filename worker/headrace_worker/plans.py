"""The files of a trial's plan. They are in each assignment, so every attempt has them, on whichever worker."""

from pathlib import Path

from headrace.spec.names import PLAN_FILE
from headrace.v1 import spec_pb2


def write_plan(plan: spec_pb2.TrialPlan, folder: Path) -> None:
    """Writes the files, replacing existing ones. Raises `ValueError` for a name that leads out of the folder."""
    folder.mkdir(exist_ok=True)
    for name in plan.files:
        if not PLAN_FILE.admits(name):
            raise ValueError(f"the plan's file {name!r} has a name that no file of a plan has")
        (folder / name).write_text(plan.files[name], encoding="utf-8")
