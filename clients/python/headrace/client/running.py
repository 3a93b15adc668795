"""A study of a local function, run by workers: what `client.run` creates."""

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from headrace.client.notebook import written
from headrace.spec import StudySpec
from headrace.spec.aims import Names, require_mapping, spec_of_call
from headrace.spec.function import is_of_notebook, located


def study_of(
    function: Callable[..., Any],
    space: object,
    name: str | None,
    *,
    minimize: Names,
    maximize: Names,
    trial: Any = None,
    **settings: Any,
) -> tuple[str, StudySpec]:
    """The study's name and spec. `trial` has further keys of a study file's `trial`, such as `env`.

    A trial has one step unless `steps` or the policy's rungs say otherwise."""
    require_mapping(space)
    target, folder = written(function) if is_of_notebook(function) else located(function)
    policy = settings.get("policy")
    if not (isinstance(policy, Mapping) and policy.get("rungs")):
        settings.setdefault("steps", 1)
    spec = spec_of_call(
        space,
        minimize=minimize,
        maximize=maximize,
        trial={**(trial or {}), "callable": target, "working_dir": str(folder)},
        **settings,
    )
    return name or _free_name(getattr(function, "__name__", "")), spec


def _free_name(function: str) -> str:
    """The function's name with six digits, which no other study has."""
    readable = re.sub("[^a-z0-9]+", "-", function.lower()).strip("-0123456789")
    return f"{readable[:40] or 'study'}-{uuid.uuid4().hex[:6]}"
