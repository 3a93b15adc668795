"""A process of the pool: holds the models of some studies, and answers one question at a time.

It is told results and asked for proposals over a pipe, and keeps no other state: whatever it holds follows from what
it was told since it started. When its parent is gone the pipe ends, and so does it.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what is heavy is imported in the process, after its threads are limited
    from headrace.spec import StudySpec
    from headrace_services.scheduler.samplers import Learner, Params, Result, Suggestion

READY = "ready"
"""What a process sends first, when its libraries are loaded: what comes after is measured against the limit."""
_NICENESS = 2
"""A fit may take its time; reports and heartbeats may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Begin a model anew."""

    spec: "StudySpec"
    warm: "tuple[Result, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Ask for a proposal, after telling what is new. `forget` names a study whose model is not needed any more."""

    study: str
    begin: Model | None
    fresh: "Sequence[Result]"
    pending: "Sequence[Params]"
    number: int
    attempt: int = 0
    forget: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The sampler raised; a later attempt begins with a fresh model."""

    error: str


def work(pipe: Connection) -> None:
    """The main function of the process: answer until the pipe ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the parent's business, which then closes the pipe
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
    """The answer to one question; whatever a sampler raises is an answer too."""
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
