"""What cannot run in this process, and what to do instead; checked before anything runs."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.metrics import plain_scalar
from headrace.spec import BestOfSampler, OwnPolicy, PbtPolicy, StudySpec


def require_runnable(spec: StudySpec, function: object, timeout_s: object, callback: object) -> None:
    """Raises `InvalidFieldError` if a valid spec cannot be run here, or if an argument is invalid."""
    violations = list(_violations(spec, function, timeout_s, callback))
    if violations:
        raise InvalidFieldError(violations)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call of the function returns a generator, as far as is known without calling it."""
    call = getattr(function, "__call__", function)  # noqa: B004  (an object that is called like a function)
    return inspect.isgeneratorfunction(inspect.unwrap(function)) or inspect.isgeneratorfunction(call)


def _violations(
    spec: StudySpec, function: object, timeout_s: object, callback: object
) -> Iterator[Violation]:
    if not callable(function):
        yield Violation(
            field="function",
            value=show_value(function),
            message="cannot be called",
            remedy='Give the function itself, such as lambda t: t["x"] ** 2.',
        )
        return
    if not _is_time(timeout_s):
        yield Violation(
            field="timeout_s",
            value=show_value(timeout_s),
            message="must be a time above 0",
            remedy="Give seconds, or leave it out.",
        )
    if callback is not None and not callable(callback):
        yield Violation(
            field="callback",
            value=show_value(callback),
            message="cannot be called",
            remedy="Give a function that takes the trial that is over.",
        )
    if isinstance(spec.sampler, BestOfSampler):
        yield Violation(
            field="sampler.kind",
            value=show_value(spec.sampler.kind),
            message="takes the configurations of another study, and there is none in this process",
            remedy="Give them in enqueue.",
        )
    if isinstance(spec.policy, PbtPolicy):
        yield Violation(
            field="policy.kind",
            value=show_value(spec.policy.kind),
            message="copies the state of trials, which live in one process here",
            remedy="Run it on workers, with headrace run or client.run.",
        )
    elif spec.pauses and not isinstance(spec.policy, OwnPolicy) and not is_generator(function):
        yield Violation(
            field="policy.kind",
            value=show_value(spec.policy.kind),
            message="pauses trials, and this function cannot be paused",
            remedy=(
                'Choose a policy that stops trials, such as {"kind": "asha", "variant": "stopping"} or "median"; or '
                "write the function as a generator that yields the result of each step."
            ),
        )


def _is_time(timeout_s: object) -> bool:
    if timeout_s is None:
        return True
    timeout_s = plain_scalar(timeout_s)
    return isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s > 0
