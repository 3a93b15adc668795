"""Finds errors before anything is spent, if the study's folder is on this machine. There are four checks, all of
the program that trials run.

- The callable can be imported: a fresh interpreter (the template's own `python`, its environment, its folder
first on the path) imports the module and finds the function, within a time limit. Nothing is called.
- If trials are fused, the function takes a bundle.
- The surrogate, if there is one, can be created (`preflight_surrogate`).
- The objective's metric is reported: the function's module is read with `ast`. If every `.report(...)` in it has
only explicit metric names, and the objective's metric is not one of them, that is an error, which suggests the
nearest name. If metrics are passed as `**metrics` or as a variable, or if there is no such call, the check
passes: it never guesses.

If the folder is not on this machine, and the workers are elsewhere, all checks are skipped. Violations are
raised as `InvalidFieldError` with the names of the study file.
"""

import ast
import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.errors import InvalidFieldError, Violation
from headrace.preflight_surrogate import examine_surrogate
from headrace.spec import StudySpec, TrialTemplate
from headrace.userfile import MIB, UserFile, UserFileError

TIMEOUT_S = 120.0
_SOURCE = UserFile(largest_bytes=16 * MIB, remedy="")
_SKIP = "or pass --no-preflight if only the workers can import it."

# Run by a fresh interpreter; prints one JSON object as its last line. The module may print anything before that.
_PROBE = """
import importlib, inspect, json, os, sys
sys.path[:] = [os.getcwd(), *(p for p in sys.path if p not in ("", os.getcwd()))]
module_name, _, attribute = sys.argv[1].partition(":")
answer = {}
try:
    module = importlib.import_module(module_name)
except ModuleNotFoundError as error:
    answer = {"problem": "missing", "missing": error.name, "error": str(error)}
except BaseException as error:
    answer = {"problem": "raised", "error": f"{type(error).__name__}: {error}".splitlines()[0]}
else:
    found = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
    if found is None:
        answer = {"problem": "absent", "names": names, "file": getattr(module, "__file__", None)}
    elif not callable(found):
        answer = {"problem": "not callable", "names": names}
    else:
        try:
            answer = {"file": inspect.getsourcefile(inspect.unwrap(found))}
        except TypeError:
            answer = {"file": getattr(module, "__file__", None)}
        try:
            from headrace.trial.bundle import takes_bundle
            answer["takes_bundle"] = takes_bundle(found)
        except ImportError:
            pass
sys.stdout.flush()
sys.stderr.flush()
os.write(int(sys.argv[2]), json.dumps(answer).encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known about the program; `takes_bundle` is None if its interpreter has no Headrace."""

    source: Path | None
    takes_bundle: bool | None = None


def preflight(
    spec: StudySpec,
    *,
    workers_here: bool = False,
    environ: Mapping[str, str] = os.environ,
    timeout_s: float = TIMEOUT_S,
) -> StudySpec:
    """The spec, with the key of its gate added.

    Raises `InvalidFieldError` for a program that cannot be imported or that never reports the objective's
    metric, and for a surrogate that cannot be created. `workers_here` means that the workers are on this
    machine, so a folder that is not here does not exist. `environ` is the environment that trials get, as far as
    it is known."""
    template = spec.template
    if template is None:
        return spec
    folder = Path(template.working_dir)
    if not workers_here and not folder.exists():
        return spec
    if not folder.is_dir():
        _fail(
            "trial.working_dir",
            "is not a folder here",
            str(folder),
            f"Name the folder of the program, {_SKIP}",
        )
    if template.command is not None:
        _check_program(template, folder)
    elif template.callable is not None:
        found = _check_import(template, template.callable, folder, environ, timeout_s)
        if spec.fuse is not None and found.takes_bundle is False:
            _fail(
                "fuse",
                f"needs a function of a bundle, and {template.callable} takes a trial",
                template.callable,
                "Give it a first parameter bundle: trial.Bundle, or leave fuse out of the study.",
            )
        if found.source is not None:
            _check_metric(found.source, spec.objective.metric)
    return examine_surrogate(spec, template, environ=environ, timeout_s=timeout_s)


_OPTIONS = ("step", "save")
"""The arguments of `t.report` that are not metrics."""


def reported_metrics(source: str) -> set[str] | None:
    """The metrics that a module's `.report(...)` calls name; None if any call may name others, or if there are
    no calls.
    """
    names: set[str] = set()
    for call in _report_calls(ast.parse(source)):
        for argument in call.args:
            match argument:
                case ast.Dict(keys=keys):
                    if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
                        return None
                    names.update(str(key.value) for key in keys if isinstance(key, ast.Constant))
                case ast.Constant():
                    pass  # a step
                case _:
                    return None
        for keyword in call.keywords:
            if keyword.arg is None:
                return None
            if keyword.arg not in _OPTIONS:
                names.add(keyword.arg)
    return names or None


def _report_calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "report":
            yield node


def _check_import(
    template: TrialTemplate, target: str, folder: Path, environ: Mapping[str, str], timeout_s: float
) -> _Found:
    python = template.python or sys.executable
    read, write = os.pipe()
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, target, str(write)],
            cwd=folder,
            env={**environ, **template.env, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(write,),
            timeout=timeout_s,
            check=False,
        )
        os.close(write)
        write = -1
        with os.fdopen(os.dup(read), "rb") as answers:
            text = answers.read()
    except subprocess.TimeoutExpired:
        _fail(
            "trial.callable",
            f"did not import within {timeout_s:g} s",
            target,
            f"Move work out of the module's top level, {_SKIP}",
        )
    except OSError as error:
        _fail("trial.python", f"cannot be started ({error.strerror})", python, "Name a Python interpreter.")
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    if not text:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [
            f"exit code {done.returncode}"
        ]
        _fail(
            "trial.callable",
            f"ended the interpreter while importing ({last[0]})",
            target,
            f"Try `{python} -c 'import {target.partition(':')[0]}'` in {folder}, {_SKIP}",
        )
    return _judge(json.loads(text), target, folder, python)


def _judge(answer: dict[str, object], target: str, folder: Path, python: str) -> _Found:
    module, _, attribute = target.partition(":")
    match answer.get("problem"):
        case "missing" if str(answer["missing"]).partition(".")[0] == module.partition(".")[0]:
            nearest = difflib.get_close_matches(module, [p.stem for p in folder.glob("*.py")], 1)
            hint = f"Did you mean {nearest[0]}:{attribute}? Otherwise give" if nearest else "Give"
            _fail(
                "trial.callable",
                f"names the module {module}, which is not in {folder}",
                target,
                f"{hint} trial.working_dir, the folder of {module.partition('.')[0]}.py, {_SKIP}",
            )
        case "missing":
            _fail(
                "trial.callable",
                f"cannot be imported from {folder}: {answer['error']}",
                target,
                f"Install {answer['missing']} for {python}, {_SKIP}",
            )
        case "raised":
            _fail(
                "trial.callable",
                f"cannot be imported from {folder}: {answer['error']}",
                target,
                f"Try `{python} -c 'import {module}'` there, {_SKIP}",
            )
        case "absent" | "not callable" as problem:
            names = answer.get("names")
            known = [str(name) for name in names] if isinstance(names, list) else []
            nearest = difflib.get_close_matches(attribute, known, 1) or known[:3]
            says = (
                f"has no function {attribute}"
                if problem == "absent"
                else f"has {attribute}, which is no function"
            )
            _fail(
                "trial.callable",
                f"module {module} in {folder} {says}",
                target,
                f"Did you mean {' or '.join(f'{module}:{name}' for name in nearest)}?"
                if nearest
                else f"Define it in {module}.py.",
            )
    file, takes_bundle = answer.get("file"), answer.get("takes_bundle")
    return _Found(Path(str(file)) if file else None, takes_bundle if isinstance(takes_bundle, bool) else None)


def _check_metric(source: Path, metric: str) -> None:
    try:
        names = reported_metrics(_SOURCE.text(source))
    except (UserFileError, SyntaxError, RecursionError):
        return
    if names is None or metric in names:
        return
    listed = ", ".join(sorted(names))
    nearest = difflib.get_close_matches(metric, sorted(names), 1, cutoff=0.5)
    meant = f"Did you mean {nearest[0]}? " if nearest else ""
    _fail(
        "objective.metric",
        f"is never reported: {source} reports {listed}",
        metric,
        f"{meant}Report it with t.report({_keyword(metric)}), or choose one that is reported.",
    )


def _keyword(metric: str) -> str:
    return f"{metric}=..." if metric.isidentifier() else f"{{{metric!r}: ...}}"


def _check_program(template: TrialTemplate, folder: Path) -> None:
    args = template.command.args if template.command else ("",)
    _check_script(args, folder)
    program = args[0]
    if "{" in program or (folder / program).exists():
        return
    path = template.env.get("PATH", os.environ.get("PATH"))
    if "/" in program or shutil.which(program, path=path) is None:
        _fail(
            "trial.command",
            f"the program is neither in {folder} nor on the PATH",
            program,
            "Correct its name, or pass --no-preflight if only the workers have it.",
        )


def _check_script(args: Sequence[str], folder: Path) -> None:
    """The script that an interpreter would run: the first argument, as in `[python, train.py, ...]`."""
    script = args[1] if len(args) > 1 else ""
    if not script.endswith(".py") or "{" in script or (folder / script).exists():
        return
    nearest = difflib.get_close_matches(script, [path.name for path in folder.glob("*.py")], 1)
    meant = f"Did you mean {nearest[0]}? Otherwise correct" if nearest else "Correct"
    _fail(
        "trial.command",
        f"the script is not in {folder}",
        script,
        f"{meant} its name or trial.working_dir, or pass --no-preflight if only the workers have it.",
    )


def _fail(field: str, message: str, value: str, remedy: str) -> NoReturn:
    raise InvalidFieldError([Violation(field=field, message=message, value=repr(value), remedy=remedy)])
