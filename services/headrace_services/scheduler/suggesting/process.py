"""A process of the pool: holds the models of some studies, and answers one question at a time.

It is given results and asked for proposals over a pipe, and keeps no other state: everything it holds follows from
what it was given since it started. When its parent dies the pipe ends, and so does the process.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # heavy modules are imported in the process, after its threads are limited
    from headrace.spec import StudySpec
    from headrace_services.scheduler.samplers import Learner, Params, Result, Suggestion

READY = "ready"
"""The first message of a process, when its libraries are loaded: the time limit applies from then on."""
_NICENESS = 2
"""A fit may be delayed; reports and heartbeats may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Start a new model."""

    spec: "StudySpec"
    warm: "tuple[Result, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Ask for a proposal, after passing what is new. `forget` names a study whose model is no longer needed."""

    study: str
    begin: Model | None
    fresh: "Sequence[Result]"
    pending: "Sequence[Params]"
    number: int
    attempt: int = 0
    forget: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The sampler raised an exception; a later attempt starts with a new model."""

    error: str


def work(pipe: Connection) -> None:
    """The main function of the process: answer until the pipe ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is handled by the parent, which then closes the pipe
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.nice(_NICENESS)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    models: dict[str, Learner] = {}
    try:
        pipe.send(READY)
        while True:
            pipe.send(answer(models, pipe.recv()))
    except (EOFError, OSError):
        return


def answer(models: "dict[str, Learner]", question: Question) -> "Suggestion | Failed":
    """The answer to one question; an exception of a sampler is an answer too."""
    try:
        if question.forget is not None:
            models.pop(question.forget, None)
        if question.begin is not None:
            from headrace_services.scheduler.samplers import make_learner

            models[question.study] = make_learner(question.begin.spec, question.begin.warm)
        model = models[question.study]
        model.learn(question.fresh)
        return model.suggest(question.number, question.pending, attempt=question.attempt)
    except Exception as error:  # noqa: BLE001  (any defect of a sampler becomes a failed attempt)
        models.pop(question.study, None)
        return Failed(error=f"{type(error).__name__}: {error}"[:1000])
