"""The files that describe the model and the cluster of a transfer's plan: `plan: {model: model.json, …}`.

They are read together with the study file, because a server does not open files that a caller names.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace.bounds import numbers
from headrace.spec.plan import FILE
from headrace.spec.problems import Problem
from headrace.userfile import UserFile, UserFileError

_DESCRIPTION: Final = UserFile(
    largest_bytes=64 * numbers.KIB,
    remedy="Name a description in JSON, relative to the study file; or a preset.",
)


def spell_out(plan: Mapping[str, Any], folder: Path, problems: list[Problem]) -> dict[str, Any]:
    """The plan with each file replaced by its contents. Records a problem for a file that cannot be used."""
    spelt = dict(plan)
    for key in ("model", "cluster"):
        named = plan.get(key)
        if not isinstance(named, str) or not named.endswith(FILE):
            continue
        problem = Problem(loc=("transfer", "plan", key), value=named, message="")
        try:
            found = _DESCRIPTION.json(folder / Path(named).expanduser())
        except UserFileError as error:
            (fault,) = error.violations
            where = "" if error.line is None else f" (line {error.line})"
            problems.append(replace(problem, message=f"{error.reason}{where}", remedy=fault.remedy))
        except RuntimeError as error:  # an unknown home folder
            problems.append(replace(problem, message=str(error), remedy=_DESCRIPTION.remedy))
        else:
            if isinstance(found, Mapping):
                spelt[key] = found
            else:
                problems.append(replace(problem, message="must hold one JSON object", remedy="Write {...}."))
    return spelt
