"""The part of the preflight that checks a study's surrogate: does the model exist, and can it be made that small?

A fresh interpreter imports the model's module, creates models for their shapes, and trains nothing. It also
computes the key that identifies a passed gate: a digest of the model's source, the surrogate, and the versions.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import CategoricalDomain, Domain, Gate, StudySpec, Surrogate, TrialTemplate, Value

_SKIP: Final = "or pass --no-preflight if only the workers can make it."
# Prints one JSON object to the given descriptor. Modules may print anything.
_PROBE: Final = """
import json, os, sys
sys.path[:] = [os.getcwd(), *(p for p in sys.path if p not in ("", os.getcwd()))]
try:
    from headrace_torch.hydro.examine import Asked, examine
except ModuleNotFoundError as error:
    answer = {"field": "surrogate", "missing": error.name}
else:
    answer = examine(Asked(**json.loads(sys.argv[1])))
sys.stdout.flush()
sys.stderr.flush()
os.write(int(sys.argv[2]), json.dumps(answer).encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """The interpreter that runs the check."""

    python: str
    folder: Path
    environ: Mapping[str, str]
    timeout_s: float


def examine_surrogate(
    spec: StudySpec, template: TrialTemplate, *, environ: Mapping[str, str], timeout_s: float
) -> StudySpec:
    """The spec with the key of its gate. Raises InvalidFieldError if the surrogate cannot be created."""
    surrogate = spec.surrogate
    if surrogate is None:
        return spec
    gate = spec.gate or Gate()
    where = _Where(
        python=template.python or sys.executable,
        folder=Path(template.working_dir),
        environ={**environ, **template.env, "CUDA_VISIBLE_DEVICES": ""},
        timeout_s=timeout_s,
    )
    answer = _answer(_asked(spec, surrogate, gate), where)
    if "key" not in answer:
        raise InvalidFieldError([_violation(answer, surrogate, gate, where)])
    if surrogate.pilot is not None:
        pilot = surrogate.pilot.model_copy(update={"scales": tuple(answer["scales"])})
        return spec.model_copy(update={"surrogate": surrogate.model_copy(update={"pilot": pilot})})
    return spec.model_copy(update={"gate": gate.model_copy(update={"key": answer["key"]})})


def _asked(spec: StudySpec, surrogate: Surrogate, gate: Gate) -> dict[str, Any]:
    domains = {name: domain.model_dump(mode="json") for name, domain in spec.space.items()}
    return {
        "model": surrogate.model,
        "width": surrogate.width,
        "scale": surrogate.scale,
        "scales": None if surrogate.pilot is None else surrogate.pilot.candidates,
        "all_scales": surrogate.pilot is not None and bool(surrogate.pilot.scales),
        "optimizer": surrogate.optimizer,
        "inputs": surrogate.inputs or "",
        "widths": gate.widths,
        "gated": not gate.off,
        "params": {name: _some_value(domain) for name, domain in spec.space.items()},
        "domains": domains,
    }


def _some_value(domain: Domain) -> Value:
    return domain.values[0] if isinstance(domain, CategoricalDomain) else domain.low


def _answer(asked: Mapping[str, Any], where: _Where) -> dict[str, Any]:
    read, write = os.pipe()
    try:
        done = subprocess.run(
            [where.python, "-c", _PROBE, json.dumps(asked), str(write)],
            cwd=where.folder,
            env=dict(where.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(write,),
            timeout=where.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"field": "surrogate.model", "error": f"was not made within {where.timeout_s:g} s"}
    finally:
        os.close(write)
        with os.fdopen(read, "rb") as answers:
            text = answers.read()
    if not text:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [
            f"exit code {done.returncode}"
        ]
        return {"field": "surrogate.model", "error": f"ended the interpreter ({last[0]})"}
    found: dict[str, Any] = json.loads(text)
    return found


def _violation(answer: Mapping[str, Any], surrogate: Surrogate, gate: Gate, where: _Where) -> Violation:
    field = answer["field"]
    if "missing" in answer:
        return Violation(
            field=field,
            message=f"needs {answer['missing']} in {where.python}, to see whether the copy can be made",
            remedy=f"Install headrace[torch] there, {_SKIP}",
        )
    values = {
        "surrogate.model": surrogate.model,
        "surrogate.inputs": surrogate.inputs,
        "surrogate.width": surrogate.width,
        "surrogate.scale": "auto" if surrogate.pilot is not None else surrogate.scale,
        "surrogate.pilot.scales": [] if surrogate.pilot is None else list(surrogate.pilot.scales),
        "gate.widths": list(gate.widths) or "the library's choice",
    }
    return Violation(
        field=field,
        message=answer["error"],
        value=repr(values[field]),
        remedy=_remedy(field, surrogate, where),
    )


def _remedy(field: str, surrogate: Surrogate, where: _Where) -> str:
    if field in ("surrogate.model", "surrogate.inputs"):
        target = surrogate.model if field == "surrogate.model" else surrogate.inputs
        return f"Name a function of a module in {where.folder} that works there ({target} does not), {_SKIP}"
    if field == "gate.widths":
        return "Name sizes that the model can have, such as gate: {widths: [64, 128, 256]}."
    if surrogate.pilot is not None:
        return "Name scales that the model can have, such as surrogate: {pilot: {scales: [4, 2]}}."
    return "Choose a size that the model can have, smaller than its own."
