"""A study of a function that is at hand, for workers: what `client.run` creates."""

import re
import uuid
from collections.abc import Callable
from typing import Any

from headrace.spec import StudySpec
from headrace.spec.aims import Names, require_mapping, spec_of_call
from headrace.spec.function import located


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
    """The study's name and its spec. `trial` has further keys of the file's `trial`, such as `env`."""
    require_mapping(space)
    target, folder = located(function)
    spec = spec_of_call(
        space,
        minimize=minimize,
        maximize=maximize,
        trial={**(trial or {}), "callable": target, "working_dir": str(folder)},
        **settings,
    )
    return name or _free_name(target), spec


def _free_name(target: str) -> str:
    """The function's name with six digits that no other study has."""
    readable = re.sub("[^a-z0-9]+", "-", target.rpartition(":")[2].lower()).strip("-")
    return f"{readable[:40] or 'study'}-{uuid.uuid4().hex[:6]}"
