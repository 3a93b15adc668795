"""How a script becomes a trial: by `main` at its end, by `current()` within it, or called by the worker.

The runtime of the trial is the first of these: a runtime installed in this process (`headrace check`), the
worker daemon that started it (`HEADRACE_RUNTIME`), or none: a run by hand, with parameters from the command
line.
"""

import argparse
import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from headrace import sources
from headrace.grants import BUNDLE
from headrace.trial import raised, rng
from headrace.trial.bundle import Bundle, takes_bundle
from headrace.trial.bundle_local import LocalBundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import BundleRuntime
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.local import LocalRuntime
from headrace.trial.runtime import (
    INFEASIBLE,
    TOLD,
    UNREADABLE,
    Assignment,
    DaemonGone,
    Ended,
    Runtime,
    TrialRuntimeError,
    Value,
)
from headrace.trial.session import Observer, Trial

_OWN_OPTIONS = ("steps", "seed", "checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A script's own settings, for runs that nobody else configures."""

    params: Mapping[str, Value]
    steps: int
    seed: int


class Host(Protocol):
    """The host of every trial in this process, in place of the worker or the command line."""

    def runtime(self, defaults: Defaults) -> tuple[Runtime, Observer | None]:
        """The runtime for a script with these defaults."""


_host: Host | None = None
_current: Trial | None = None

if os.environ.get("HEADRACE_RUNTIME"):
    sources.notice()  # a script imports its own files before it calls `main`


def install(host: Host) -> None:
    """From now on, `main` and `current` in this process use `host`."""
    global _host
    _host = host


def main(
    function: Callable[[Trial], object] | Callable[[Bundle], object],
    *,
    defaults: Mapping[str, Value] | None = None,
    steps: int = 1,
    seed: int = 0,
    argv: Sequence[str] | None = None,
) -> None:
    """Calls `function` with the trial of this process. In a run by hand, the command line changes `defaults`.

    Options by hand: `--lr 0.1` for each default, `--steps`, `--seed`, and `--checkpoints DIR` to save at each
    report and to continue. A function that takes a bundle also trains several configurations at once: `--lr
    0.1,0.2`.
    """
    found = Defaults(params=dict(defaults or {}), steps=steps, seed=seed)
    if takes_bundle(function):
        bundle = _find_bundle(found, argv)
        run_bundle(cast("Callable[[Bundle], object]", function), bundle, bundle.attach())
        return
    runtime, observer = _find_runtime(found, argv)
    run(cast("Callable[[Trial], object]", function), runtime, runtime.attach(), observer)


def current(
    *,
    defaults: Mapping[str, Value] | None = None,
    steps: int = 1,
    seed: int = 0,
    argv: Sequence[str] | None = None,
) -> Trial:
    """The trial of this process, for a script without a training function: started by a command template, or by
    hand.

    The first call attaches and seeds the random generators; the end of the process finishes the trial.

    By hand, it reads the options of `main` from the command line, and leaves others to the script. `argv` passes
    a separate list, such as `rest` of `args, rest = parser.parse_known_args()`; an unknown option in it is an
    error.
    """
    global _current
    if _current is None:
        found = Defaults(params=dict(defaults or {}), steps=steps, seed=seed)
        runtime, observer = _find_runtime(found, argv, among_others=argv is None)
        assignment = runtime.attach()
        rng.seed_all(assignment.seed)
        try:
            _current = Trial(assignment, runtime, observer)
        except BaseException as error:
            finish_with(runtime, error)
            raise
        _finish_at_exit(runtime, _current)
    return _current


def leave_current() -> None:
    """Lets the next `current` make another trial: a process by hand may train several, one after another."""
    global _current
    if _host is None and not os.environ.get("HEADRACE_RUNTIME"):
        _current = None


def report_returned(returned: object) -> None:
    """What a training function returned, for a caller that gets the trial from `current`: the result, if the trial
    has reported nothing.
    """
    current(argv=[])._report_returned(returned)


def has_current() -> bool:
    """Whether a trial of this process was made by `current`."""
    return _current is not None


def run(
    function: Callable[[Trial], object],
    runtime: Runtime,
    assignment: Assignment,
    observer: Observer | None = None,
) -> None:
    """Seeds, calls `function` with the trial, and finishes it; an exception is reported and raised again."""
    rng.seed_all(assignment.seed)
    process = os.getpid()
    trial: Trial | None = None
    try:
        trial = Trial(assignment, runtime, observer)
        trial._report_returned(function(trial))
    except Ended:
        pass
    except (TrialRuntimeError, DaemonGone):
        raise  # there is nobody to report to
    except BaseException as error:
        if os.getpid() == process:
            finish_with(runtime, error, trial)
        raise
    if os.getpid() != process:
        return  # a fork of it is not the trial
    runtime.finish(error="", traceback="", own=trial._own_end() if trial is not None else TOLD)


def finish_with(runtime: Runtime, error: BaseException, trial: Trial | None = None) -> None:
    """Reports to the runtime how the program ended: only `sys.exit(0)` is success."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        runtime.finish(error="", traceback="", own=trial._own_end() if trial is not None else TOLD)
        return
    if (reason := raised.infeasible(error)) is not None:
        runtime.finish(error=reason, traceback="", own=INFEASIBLE)
        return
    line, trace = raised.words(error)
    own = UNREADABLE if raised.unreadable(error) else TOLD
    runtime.finish(error=line, traceback=trace, own=own)


def _find_runtime(
    defaults: Defaults, argv: Sequence[str] | None, *, among_others: bool = False
) -> tuple[Runtime, Observer | None]:
    if _host is not None:
        return _host.runtime(defaults)
    if os.environ.get("HEADRACE_RUNTIME"):
        from headrace.trial.cluster import ClusterRuntime  # gRPC only if there is a daemon to talk to

        return ClusterRuntime.from_environment(), None
    return _local_runtime(defaults, argv, among_others=among_others), None


def _find_bundle(defaults: Defaults, argv: Sequence[str] | None) -> BundleRuntime:
    if _host is None and os.environ.get(BUNDLE):
        from headrace.trial.bundle_cluster import (
            ClusterBundle,
        )  # gRPC only if there is a daemon to talk to

        return ClusterBundle.from_environment()
    if _host is None and not os.environ.get("HEADRACE_RUNTIME"):
        return _local_bundle(defaults, argv)
    return SoloBundle(_find_runtime(defaults, argv)[0])


def _local_bundle(defaults: Defaults, argv: Sequence[str] | None) -> LocalBundle:
    """Members by hand: for parameters with several values, the first member has the first values, and so on."""
    given = _parsed(defaults, argv, several=True)
    several = {name: given[name] for name in defaults.params if len(given[name]) > 1}
    count = max(map(len, several.values()), default=1)
    if other := [name for name, values in several.items() if len(values) != count]:
        most = next(name for name, values in several.items() if len(values) == count)
        raise ValueError(
            f"--{other[0]} has {len(several[other[0]])} values and --{most} has {count}: give each as many, one for "
            "each member, or a single value for all"
        )
    params = [
        {name: given[name][place if name in several else 0] for name in defaults.params}
        for place in range(count)
    ]
    return LocalBundle(
        params=params, steps=given["steps"], seed=given["seed"], checkpoints=given["checkpoints"]
    )


def _local_runtime(defaults: Defaults, argv: Sequence[str] | None, *, among_others: bool) -> LocalRuntime:
    given = _parsed(defaults, argv, several=False, among_others=among_others)
    return LocalRuntime(
        params={name: given[name] for name in defaults.params},
        steps=given["steps"],
        seed=given["seed"],
        checkpoints=given["checkpoints"],
    )


def _parsed(
    defaults: Defaults, argv: Sequence[str] | None, *, several: bool, among_others: bool = False
) -> dict[str, Any]:
    """The command line. With `several`, a parameter is a list: `--lr 0.1,0.2`. With `among_others`, unknown
    options belong to the script.
    """
    clash = [name for name in defaults.params if name in _OWN_OPTIONS]
    if clash:
        raise ValueError(
            f"parameter {clash[0]!r} has the name of an option of its own: --{clash[0]}; call it something else"
        )
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    for name, default in defaults.params.items():
        names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parse = _parser_of(default)
        if several:
            parser.add_argument(
                *names, dest=name, type=_each(parse), default=[default], help="a parameter, or several: A,B,C"
            )
        else:
            parser.add_argument(*names, dest=name, type=parse, default=default, help="a parameter")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="the budget")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="seeds the random generators")
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="save here at each report, and continue from here"
    )
    if not among_others:
        return vars(parser.parse_args(argv))
    given, others = parser.parse_known_args(argv)
    if others:
        print(f"headrace: left to the script: {' '.join(others)}", file=sys.stderr)
    return vars(given)


def _each(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def values(text: str) -> list[Value]:
        return [parse(one.strip()) for one in text.split(",")]

    return values


def _parser_of(default: Value) -> Callable[[str], Value]:
    if isinstance(default, bool):
        return _parse_bool
    return type(default)


def _parse_bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "1"):
        return True
    if text.lower() in ("false", "no", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _finish_at_exit(runtime: Runtime, trial: Trial) -> None:
    """A script without a function has no caller to catch its exceptions, so the interpreter's hooks are used."""
    before = sys.excepthook
    process = os.getpid()
    failed = False

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        nonlocal failed
        failed = True
        before(kind, error, trace)
        if os.getpid() == process:  # a fork of it is not the trial
            finish_with(runtime, error)

    def at_exit() -> None:
        if not failed and os.getpid() == process:
            # `sys.exit(1)` also arrives here, and its status is not known here.
            runtime.finish(error="", traceback="", own=replace(trial._own_end(), exiting=True))

    sys.excepthook = hook
    atexit.register(at_exit)
