"""Resource names: `studies/{study}`, `studies/{study}/trials/{number}`, `workers/{worker}`, `projects/{project}`.

A study's name is unique within the caller's project, which is not part of any resource name.

Resource names are built and parsed only here. An invalid name is refused with the field that it came in.
"""

import re
from dataclasses import dataclass
from typing import NoReturn

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import check_study_id
from headrace.spec.names import PROJECT, WORKER

_STUDY = re.compile(r"studies/([^/]+)")
_TRIAL = re.compile(r"studies/([^/]+)/trials/([0-9]{1,18})")
_WORKER = re.compile(r"workers/([^/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialName:
    """The parts of a trial's name."""

    study: str
    number: int


def study_name(study: str) -> str:
    """`studies/digits` for `digits`."""
    return f"studies/{study}"


def trial_name(study: str, number: int) -> str:
    """`studies/digits/trials/3` for `digits` and 3."""
    return f"studies/{study}/trials/{number}"


def worker_name(worker: str) -> str:
    """`workers/node-1` for `node-1`."""
    return f"workers/{worker}"


def project_name(project: str) -> str:
    """`projects/vision` for `vision`."""
    return f"projects/{project}"


def parse_project(name: str, *, field: str = "name") -> str:
    """`vision` for `projects/vision`. Raises InvalidFieldError for anything else."""
    found = name.removeprefix("projects/")
    if found == name or not PROJECT.admits(found):
        _refuse(field, name, "is not the name of a project", "Write it as projects/PROJECT.")
    return found


def parse_study(name: str, *, field: str = "name") -> str:
    """`digits` for `studies/digits`. Raises InvalidFieldError for anything else."""
    match = _STUDY.fullmatch(name)
    if match is None:
        _refuse(field, name, "is not the name of a study", "Write it as studies/STUDY.")
    return check_study_id(match[1], field=field)


def parse_trial(name: str, *, field: str = "name") -> TrialName:
    """The parts of `studies/digits/trials/3`. Raises InvalidFieldError for anything else."""
    match = _TRIAL.fullmatch(name)
    if match is None:
        _refuse(field, name, "is not the name of a trial", "Write it as studies/STUDY/trials/NUMBER.")
    return TrialName(study=check_study_id(match[1], field=field), number=int(match[2]))


def parse_worker(name: str, *, field: str = "worker") -> str:
    """`node-1` for `workers/node-1`. Raises InvalidFieldError for anything else."""
    match = _WORKER.fullmatch(name)
    if match is None:
        _refuse(field, name, "is not the name of a worker", "Write it as workers/WORKER.")
    if (problem := WORKER.problem(match[1], field)) is not None:
        raise InvalidFieldError([problem.violation()])
    return match[1]


def parse_parent(name: str, *, field: str = "parent") -> tuple[str, int | None]:
    """A study, or a study and a trial's number. Raises InvalidFieldError for anything else."""
    if _TRIAL.fullmatch(name):
        trial = parse_trial(name, field=field)
        return trial.study, trial.number
    if not _STUDY.fullmatch(name):
        remedy = "Write it as studies/STUDY or studies/STUDY/trials/NUMBER."
        _refuse(field, name, "is neither the name of a study nor of a trial", remedy)
    return parse_study(name, field=field), None


def _refuse(field: str, name: str, message: str, remedy: str) -> NoReturn:
    if not name:
        violation = Violation(field=field, message="is required", remedy=remedy)
    else:
        violation = Violation(field=field, value=show_value(name), message=message, remedy=remedy)
    raise InvalidFieldError([violation])
