"""What to start for an assignment: the program, its environment, its folders. Pure."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.environment import is_named, select
from headrace.folders import study_folder
from headrace.grants import BUNDLE, CPUS, GPU_MEMORY_BYTES, GPU_SHARE, WHOLE, WORLD_SIZE
from headrace.v1 import spec_pb2, worker_pb2
from headrace_worker.quarters import Quarters
from headrace_worker.run_as import OtherUser

# Marks every process of a trial, including its children's children.
LEASE_VARIABLE = "HEADRACE_LEASE_ID"
TRIAL_VARIABLE = "HEADRACE_TRIAL"
# The stage whose idle windows all trials of this worker work in; set by whoever starts the worker.
GATE_VARIABLE = "HEADRACE_BUBBLE_GATE"
_TEMPORARY = ("TMPDIR", "TMP", "TEMP")
_TRIAL = re.compile(r"studies/([^/]+)/trials/(\d+)")
_UID = re.compile(r"[0-9A-Za-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program to start."""

    args: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str
    log_path: Path
    # The mode bits that its files do not get; None: the same as for the daemon's files.
    umask: int | None = None
    # The user that it runs as, in the form that the shim takes; empty: the daemon's user.
    user: str = ""
    # The daemon's variables that it does not get.
    withheld: tuple[str, ...] = ()
    # The `module:function` that a process may import before its trial is known; empty if none may.
    target: str = ""
    # Whether a process may run several trials, one after another.
    reuse: bool = False
    # The code that is unpacked into `working_dir` before the start, and deleted at the end; None: the folder
    # already exists.
    archive: Path | None = None
    # Where a process of another user lives; None: in its user's home.
    quarters: Quarters | None = None


def study_and_number(trial: str) -> tuple[str, int]:
    """Splits `studies/{study}/trials/{number}`; raises `ValueError` for any other name."""
    found = _TRIAL.fullmatch(trial)
    if found is None or found[1] in {".", ".."}:
        raise ValueError(f"trial {trial!r} is not of the form studies/STUDY/trials/NUMBER")
    return found[1], int(found[2])


def file_name(name: str) -> str:
    """A name, such as a lease's, reduced to what suits a file name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:80] or "_"


def folder_of(assign: worker_pb2.Assign) -> str:
    """The trial's place among the checkpoints, `studies/{study}-{uid}/trials/{number}`, which no other study ever
    has.

    Raises `ValueError` if the assignment names no such place.
    """
    folder, number = _folder_and_number(assign)
    return f"studies/{folder}/trials/{number}"


def log_path(log_dir: Path, assign: worker_pb2.Assign) -> Path:
    """Says where a trial's log is: in the place that the worker promised in its Hello."""
    folder, number = _folder_and_number(assign)
    return log_dir / folder / f"{number}.log"


def _folder_and_number(assign: worker_pb2.Assign) -> tuple[str, int]:
    study, number = study_and_number(assign.lease.trial)
    if not _UID.fullmatch(assign.study_uid):
        raise ValueError(f"study_uid {assign.study_uid!r} is not made of letters and digits")
    return study_folder(study, assign.study_uid), number


def launch_of(
    assign: worker_pb2.Assign,
    *,
    devices: Sequence[worker_pb2.Device],
    runtime: str,
    log_dir: Path,
    environ: Mapping[str, str],
    gates: Mapping[int, str] | None = None,
    cores: int = 1,
    pass_env: Sequence[str] = (),
    umask: int | None = None,
    user: OtherUser | None = None,
    quarters: Quarters | None = None,
    archive: Path | None = None,
    working_dir: str = "",
    made_python: Path | None = None,
    shared: Mapping[str, str] | None = None,
) -> Launch:
    """Works out how to start an assigned trial. From the daemon's `environ` it gets what `headrace.environment`
    lists, and from the machine's `cores` its slots' part; `gates` are the stages' files of slots in bubbles.
    Another `user` has `quarters`. Shipped code is an `archive`, for `working_dir`. If an environment was made for
    the program, `made_python` is its interpreter. A client of MPS gets the variables in `shared`.

    Raises `ValueError`, with a text for the user, if the template names no program.
    """
    template = assign.template
    granted = [device for device in devices if device.index in set(assign.grant.slots)]
    gpus = [device.uuid for device in granted if device.kind == worker_pb2.DEVICE_KIND_GPU]
    selection = select(environ, pass_env)
    env = dict(selection.passed)
    if user is not None:
        env = _of_another_user(env, user, quarters, pass_env)
    env.setdefault("PYTHONUNBUFFERED", "1")  # a log that is followed must not lag
    in_bubbles = [gates[index] for index in assign.grant.slots if gates and index in gates]
    if gate := next(iter(in_bubbles), environ.get(GATE_VARIABLE, "")):
        env[GATE_VARIABLE] = gate
    if made_python is not None:
        env["VIRTUAL_ENV"] = str(made_python.parent.parent)
        env["PATH"] = f"{made_python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    env.update(template.env)
    env[LEASE_VARIABLE] = assign.lease.lease_id
    if assign.grant.seats > 1:
        env[BUNDLE] = assign.grant.id
    env.update(
        HEADRACE_RUNTIME=runtime,
        CUDA_VISIBLE_DEVICES=",".join(gpus),
        **{TRIAL_VARIABLE: assign.lease.trial},
        **_share(assign.grant),
        **(shared or {}),
        **{CPUS: str(_cores(assign.grant, cores, sum(not d.HasField("bubbles") for d in devices)))},
    )
    return Launch(
        args=_args(assign, str(made_python or "") or template.python or sys.executable),
        env=env,
        working_dir=working_dir or template.working_dir,
        log_path=log_path(log_dir, assign),
        umask=umask,
        user=_spelled(user, quarters),
        withheld=tuple(name for name in selection.withheld if name not in template.env),
        target="" if in_bubbles else _target(assign),  # what is imported ahead is not gated
        reuse=template.reuse and bool(template.callable) and not in_bubbles,
        archive=archive,
        quarters=quarters,
    )


def _of_another_user(
    env: Mapping[str, str], user: OtherUser, quarters: Quarters | None, pass_env: Sequence[str]
) -> dict[str, str]:
    """The environment of a process of another user: the worker's places for files are not its own, unless the
    worker's operator names them."""
    own, defaults = dict(user.variables), {}
    if quarters is not None:
        own |= quarters.variables
        defaults = dict(quarters.defaults)
    kept = {
        name: value
        for name, value in env.items()
        if is_named(name, pass_env) or not (name.startswith("XDG_") or name in _TEMPORARY)
    }
    return (
        defaults
        | kept
        | {name: value for name, value in own.items() if name not in kept or not is_named(name, pass_env)}
    )


def _spelled(user: OtherUser | None, quarters: Quarters | None) -> str:
    if user is None:
        return ""
    return user.spelled if quarters is None else quarters.user(user.spelled)


def _target(assign: worker_pb2.Assign) -> str:
    """What may be imported ahead: a callable of one process, unless its template forbids it."""
    template = assign.template
    forbidden = template.HasField("prestart") and not template.prestart
    return "" if forbidden or _is_gang(assign) else template.callable


def _is_gang(assign: worker_pb2.Assign) -> bool:
    return assign.grant.processes == spec_pb2.PROCESSES_PER_SLOT


def _share(grant: worker_pb2.Grant) -> dict[str, str]:
    """What a program may need to know about its grant, whatever library it uses."""
    env = {WORLD_SIZE: str(max(1, len(grant.slots)))}
    if grant.milli and grant.milli < WHOLE:
        env[GPU_SHARE] = f"{grant.milli / WHOLE:g}"
    if grant.memory_bytes:
        env[GPU_MEMORY_BYTES] = str(grant.memory_bytes)
    return env


def _cores(grant: worker_pb2.Grant, cores: int, slots: int) -> int:
    """Each slot brings an equal part of the machine's cores; a share of a slot brings the same share of them."""
    return max(1, cores * len(grant.slots) * (grant.milli or WHOLE) // (max(1, slots) * WHOLE))


def _args(assign: worker_pb2.Assign, python: str) -> tuple[str, ...]:
    program = _program(assign, python)
    if _is_gang(assign):
        return (python, "-m", "headrace.trial.gang", *program)
    return program


def _program(assign: worker_pb2.Assign, python: str) -> tuple[str, ...]:
    template = assign.template
    match template.WhichOneof("program"):
        case "callable":
            return (python, "-m", "headrace.trial.process")
        case "command" if template.command.args:
            # Models in a spec take longer to import than everything else that a daemon needs.
            from headrace.spec import CommandLine, params_from_proto

            _, number = study_and_number(assign.lease.trial)
            command = CommandLine(args=tuple(template.command.args))
            return tuple(command.fill(params_from_proto(assign.parameters), trial=number, seed=assign.seed))
        case _:
            raise ValueError("the trial template names no program: set callable or command")
