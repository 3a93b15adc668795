"""`headrace.optimize`: tunes a function in the process that calls it, without a server and without files.

It uses the same samplers, policies and rules as a server: the core of the scheduler runs here, on rows in
memory. The core comes with `headrace[services]` and is imported when it is first needed.

One trial runs at a time. Ctrl-C and the timeout end the study, and its results so far are returned. Nothing can
be resumed later: a study that should outlive the process belongs on a server (`headrace up`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.client.repeats import creation_warnings
from headrace.client.result import Result
from headrace.client.warning import warn, warn_of_failure
from headrace.in_process.engine import new_engine
from headrace.in_process.loop import Callback, Loop
from headrace.in_process.refused import require_runnable
from headrace.spec.aims import Names, names_of, require_mapping, spec_of_call
from headrace.trial.session import Trial

__all__ = ["Callback", "optimize"]

STOPPING = {"kind": "asha", "variant": "stopping"}
"""The default policy if trials take several steps: a function cannot be paused."""


def optimize(
    function: Callable[[Trial], Any],
    space: Mapping[str, Any],
    *,
    trials: int,
    minimize: Names = (),
    maximize: Names = (),
    scope: str | None = None,
    k: int | None = None,
    constraints: Sequence[Mapping[str, Any]] = (),
    steps: int = 1,
    sampler: str | Mapping[str, Any] = "tpe",
    policy: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    baseline: Mapping[str, Any] | None = None,
    enqueue: Sequence[Mapping[str, Any]] = (),
    retries: int = 0,
    early_failures: int = 3,
    timeout_s: float | None = None,
    callback: Callback | None = None,
) -> Result:
    """Tunes a function in this process, without a server and without files, and returns the result.

    The function gets a trial, which also works as a mapping of its parameters: `t["x"]` is `t.params["x"]`. It
    does one of three things:

    - it returns its result: a number, a mapping of metrics, or a number for each objective;
    - it reports steps with `t.report(loss=...)`, in a loop over `t.steps()` that ends where the policy stops the
    trial;
    - it is a generator that yields the result of each step. Only a generator can be paused, so only a generator
    may have a policy that pauses.

    Args: space: as in a study file; so are `constraints`, `steps`, `sampler`, `policy`, `seed`, `baseline`,
        `enqueue`, `retries` and `early_failures`. trials: the number of configurations to try. minimize: the
        metric to minimize, or several. Without any name, the value that the function returns. maximize: the
        metric to maximize, or several. scope: which value counts for a trial of several steps, as in a study
        file; `k` belongs to `mean_last_k`. policy: by default, ASHA stops trials of several steps, and trials
        with several objectives run to the end. timeout_s: after this time no trial starts, and a running one is
        stopped at its next report. callback: called with each trial that is over. If it returns True, the study
        ends.

    Raises InvalidFieldError before anything runs if an argument is invalid. If no trial ever reported anything,
    raises the function's last exception. Does not touch the global random generators; `t.seed` seeds your own.
    """
    require_mapping(space)
    if policy is None:
        several = len(names_of("minimize", minimize)) + len(names_of("maximize", maximize)) > 1
        policy = "run_all" if steps == 1 or several else STOPPING
    spec = spec_of_call(
        space,
        minimize=minimize,
        maximize=maximize,
        scope=scope,
        k=k,
        constraints=list(constraints) or None,
        trials=trials,
        steps=steps,
        sampler=sampler,
        policy=policy,
        seed=seed,
        baseline=baseline,
        enqueue=list(enqueue) or None,
        retries=retries,
        early_failures=early_failures,
    )
    require_runnable(spec, function, timeout_s, callback)
    for message in creation_warnings(spec):
        warn(message)
    engine = new_engine(spec)
    loop = Loop(engine, function, timeout_s=timeout_s, callback=callback)
    error = loop.run()
    study, found, reports = engine.show()
    if error is not None and engine.has_failed and not engine.has_reports:
        error.add_note(f"headrace.optimize: {study.detail}")
        raise error
    warn_of_failure(study)
    return Result.of(study, found, reports)
