"""`attach(engine)`: one line after `deepspeed.initialize`, without a fork of DeepSpeed.

DeepSpeed looks up every instruction in `engine._INSTRUCTION_MAP`, an attribute of its class. The hook gives this
one engine a map of its own with wrapped functions, and wraps three of its methods in the same way. Removing the
hook deletes these attributes, so that the class's own are found again, from the next instruction on.
"""

import functools
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace_torch.bubble_shm import (
    Alarm,
    Awaits,
    StageFile,
    StageFileError,
    StageHeader,
    folder,
    started_ticks,
)
from headrace_torch.bubbles.hook import Hook, shape_of

log = logging.getLogger("headrace.bubbles")

OLDEST: Final = (0, 19, 3)
"""Older releases of DeepSpeed are not known to run instructions this way."""
SCHEDULE: Final = "TrainSchedule"
"""DeepSpeed's 1F1B. The windows of other schedules are in other places."""
SMALL: Final = 0.05
"""A smaller share of idle time than this is reported as small."""
_WAITS: Final = {
    "RecvActivation": Awaits.FORWARD,
    "RecvGrad": Awaits.BACKWARD,
    "SendActivation": Awaits.NOTHING,
    "SendGrad": Awaits.NOTHING,
}
_MARK: Final = "_headrace_bubbles"
_METHODS: Final = ("_train_schedule", "_aggregate_total_loss", "reset_activation_shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What `attach` did.

    Attributes:
        why_not: empty if the hook works; else why the engine was left unchanged.
        path: the stage's file, if there is one.
    """

    why_not: str
    path: Path | None = None
    hook: Hook | None = None

    @property
    def active(self) -> bool:
        """Whether this rank writes its progress."""
        return self.hook is not None and not self.hook.why

    def detach(self) -> None:
        """Removes the hook. The engine is as it was before `attach`."""
        if self.hook is not None:
            self.hook.detach("the script asked for it")


def attach(engine: Any, *, job: str | None = None, place: Path | None = None) -> Attachment:
    """Lets trials run while this rank of a DeepSpeed pipeline waits. Every rank calls it.

    It changes no number: losses are bit for bit those of a run without it. If it cannot work, it logs why and
    leaves the engine alone. It raises nothing, and it communicates with nobody.

    Args:
        engine: made by `deepspeed.initialize` from a `PipelineModule`; DeepSpeed 0.19.3 or newer.
        job: a name for the training job, the same on all ranks. Default: HEADRACE_BUBBLES_JOB, else the job's master
            address and port.
        place: folder of the stages' files, the agent's too. Default: HEADRACE_BUBBLES, else a folder of this user's
            in /dev/shm.
    """
    try:
        known = getattr(engine, "__dict__", {}).get(_MARK)
        if known is not None and known.active:
            return known  # type: ignore[no-any-return]  # it is ours
        why = _unfit(engine)
        if why:
            return _left_alone(why)
        return _attached(engine, job or _job_name(), place or folder())
    except StageFileError as error:
        return _left_alone(str(error))
    except Exception as error:  # noqa: BLE001  the primary goes on, whatever it is
        return _left_alone(f"{type(error).__name__}: {error}")


def _unfit(engine: Any) -> str:
    """Why it cannot attach to an engine; empty if it can."""
    kinds = [kind.__name__ for kind in type(engine).__mro__]
    if "PipelineEngine" not in kinds:
        return (
            f"{type(engine).__name__} has no pipeline, so no windows: give deepspeed.initialize a PipelineModule "
            "with two stages or more"
        )
    version = _version(engine)
    if version < OLDEST:
        return f"DeepSpeed {'.'.join(map(str, version))} is too old: install deepspeed>=0.19.3"
    if sys.platform != "linux":
        return f"{sys.platform} lacks the shared memory that trials need: run on Linux"
    if engine.num_stages < 2:
        return "the pipeline has one stage, which waits for nobody"
    schedule = type(engine._train_schedule()).__name__
    if schedule != SCHEDULE:
        return f"the schedule {schedule} is not supported: only DeepSpeed's 1F1B ({SCHEDULE}) is"
    missing = sorted(set(_WAITS) - {kind.__name__ for kind in engine._INSTRUCTION_MAP})
    if missing:
        return f"this DeepSpeed has no instruction {missing[0]}: use a tested release, such as 0.19.8"
    return ""


def _version(engine: Any) -> tuple[int, ...]:
    roots = [
        kind.__module__.partition(".")[0]
        for kind in type(engine).__mro__
        if kind.__name__ == "PipelineEngine"
    ]
    told = str(getattr(sys.modules.get(roots[0]), "__version__", "0"))
    return tuple(int(part) for part in re.findall(r"\d+", told)[:3])


def _job_name() -> str:
    named = os.environ.get("HEADRACE_BUBBLES_JOB")
    return named or f"{os.environ.get('MASTER_ADDR', 'local')}-{os.environ.get('MASTER_PORT', '0')}"


def _attached(engine: Any, job: str, place: Path) -> Attachment:
    if engine.device.type == "cuda":
        return _left_alone(
            "on a GPU progress must be written in the order of the stream, which this release does not do: "
            "the host runs ahead of the device, so its clock is not reliable"
        )
    grid = engine.grid
    header = StageHeader(
        job=job,
        replica=int(grid.data_parallel_id),
        stage=int(engine.stage_id),
        stages=int(engine.num_stages),
        rank=int(engine.global_rank),
        device=str(engine.device.type),
        pid=os.getpid(),
        started=started_ticks(os.getpid()) or 0,
    )
    file = StageFile.create(place, header)
    dynamic = bool(getattr(engine, "dynamic_shape", False))
    hook = Hook(file, functools.partial(_take_off, engine), dynamic=dynamic)
    wiring = _wiring(engine, hook)
    engine.__dict__.update(wiring)
    attachment = Attachment(why_not="", path=file.path, hook=hook)
    engine.__dict__[_MARK] = attachment
    _say(engine, header)
    return attachment


def _take_off(engine: Any) -> None:
    for name in ("_INSTRUCTION_MAP", *_METHODS):
        engine.__dict__.pop(name, None)


def _wiring(engine: Any, hook: Hook) -> dict[str, Any]:
    """The attributes that shadow those of the class."""
    instructions = {
        kind: _instruction(hook, kind.__name__, run) for kind, run in engine._INSTRUCTION_MAP.items()
    }
    schedule, loss, reset = (getattr(engine, name) for name in _METHODS)

    def train_schedule() -> Any:
        made = schedule()
        if type(made).__name__ == SCHEDULE:
            hook.begin_step(int(engine.global_steps), int(made.num_micro_batches))
        else:
            hook.detach(f"the schedule {type(made).__name__} is not supported")
        return made

    def aggregate_total_loss() -> Any:
        if not hook.stepping:
            return loss()
        hook.begin_wait()
        try:
            return loss()
        except BaseException:
            hook.alarm(Alarm.FAILED)
            raise
        finally:
            hook.end_wait()
            hook.end_step()

    def reset_activation_shape() -> Any:
        hook.changed()
        return reset()

    wrapped = dict(zip(_METHODS, (train_schedule, aggregate_total_loss, reset_activation_shape), strict=True))
    return {"_INSTRUCTION_MAP": instructions, **wrapped}


def _instruction(hook: Hook, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """One wrapped instruction. Outside a train step, as in an evaluation, it runs unchanged."""
    if name in _WAITS:
        awaits = int(_WAITS[name])

        def waits(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not hook.stepping:
                return run(engine, *args, **kwargs)
            hook.begin_wait(awaits)
            try:
                return run(engine, *args, **kwargs)
            except BaseException:
                hook.alarm(Alarm.FAILED)
                raise
            finally:
                hook.end_wait()

        return waits

    def computes(engine: Any, *args: Any, **kwargs: Any) -> Any:
        if hook.stepping:
            if name == "ForwardPass":
                hook.begin_forward(_input_shape(engine, kwargs))
            elif name == "BackwardPass":
                hook.begin_backward()
        try:
            return run(engine, *args, **kwargs)
        except StopIteration:
            raise  # the data has ended
        except BaseException as error:
            hook.alarm(Alarm.MEMORY if type(error).__name__ == "OutOfMemoryError" else Alarm.FAILED)
            raise

    return computes


def _input_shape(engine: Any, kwargs: dict[str, Any]) -> int:
    try:
        return shape_of(engine.pipe_buffers["inputs"][kwargs["buffer_id"]])
    except Exception:  # noqa: BLE001  a shape that is not known never changes
        return 0


def _say(engine: Any, header: StageHeader) -> None:
    idle = (header.stages - 1) / (engine.micro_batches + header.stages - 1)
    little = "; that is little: trials gain from fewer micro-batches or more stages" if idle < SMALL else ""
    log.info(
        "headrace bubbles: job %s, stage %d of %d, %d micro-batches: idle for %.0f %% of each step%s",
        header.job,
        header.stage,
        header.stages,
        engine.micro_batches,
        100 * idle,
        little,
    )


def _left_alone(why: str) -> Attachment:
    log.warning("headrace bubbles: not attached: %s. Training continues without it.", why)
    return Attachment(why_not=why)
