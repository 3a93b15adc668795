"""Resource names in messages, and the bare names that people use.

`studies/digits/trials/3` is trial 3 of study `digits`; the SDK takes and returns `digits` and `3`. A resource
name is also accepted where a bare one is expected, so that output of an API can be pasted.
"""

import re

from headrace.client.model import TrialRef

_TRIAL = re.compile(r"studies/(?P<study>[^/]+)/trials/(?P<number>\d+)")


def study_id(name: str) -> str:
    """`digits` for both `digits` and `studies/digits`."""
    return name.removeprefix("studies/")


def study_name(name: str) -> str:
    """`studies/digits` for both `digits` and `studies/digits`."""
    return f"studies/{study_id(name)}"


def trial_name(study: str, number: int) -> str:
    """`studies/digits/trials/3`."""
    return f"{study_name(study)}/trials/{number}"


def trial_ref(name: str) -> TrialRef | None:
    """The trial that a resource name refers to; None for an empty or foreign name."""
    match = _TRIAL.fullmatch(name)
    return TrialRef(match["study"], int(match["number"])) if match else None


def worker_id(name: str) -> str:
    """`node-1` for both `node-1` and `workers/node-1`."""
    return name.removeprefix("workers/")


def worker_name(name: str) -> str:
    """`workers/node-1` for both `node-1` and `workers/node-1`."""
    return f"workers/{worker_id(name)}"
