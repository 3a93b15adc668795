"""The plan of a transfer. A planner computes it before the study is created, so that an impossible plan costs
nothing.

With an address, given or in `HEADRACE_PLANNER`, the planner there is asked. Without one, a planner is started on
this machine for this question, and stopped after its answer.
"""

import asyncio
import json
import os
import re
import select
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from headrace.client.missing import require
from headrace.client.planning import ADDRESS_ENV, Planner, SearchProgress
from headrace.errors import HeadraceError, InvalidFieldError, UnreachableError, Violation
from headrace.spec import StudySpec
from headrace.tethered import tethered

OnProgress = Callable[[SearchProgress], None]
FIELD: Final = "transfer.plan"
PLAN: Final = "plan.json"
"""The file with the complete answer, in addition to the target's files."""
READY_TIMEOUT_S: Final = 60.0
_ELSEWHERE: Final = (
    "Start one there with `headrace planner`, correct the address, or leave it out (also HEADRACE_PLANNER): "
    "then the plan is made on this machine."
)
_WAY: Final = re.compile(r"^(model|cluster)_(?:name|json)")
_OPTION: Final = re.compile(r"--([a-z][a-z-]*)")


class _GivenUpError(Exception):
    """Nobody is waiting for the plan any more."""


def planned(spec: StudySpec, planner: str | None = None, on_progress: OnProgress | None = None) -> StudySpec:
    """The spec with the answer for its transfer's plan; unchanged if it has no plan, or was already answered.

    Asks the planner at `planner`, or else at `HEADRACE_PLANNER`, or else one that it starts. `on_progress` is
    called while the search runs; an exception raised there cancels the search. Raises `InvalidFieldError` with
    paths below `transfer.plan` for an impossible plan, and `HeadraceError` if no planner answers.
    """
    plan = spec.open_plan
    if plan is None:
        return spec
    with ExitStack() as stack:
        if not (planner or os.environ.get(ADDRESS_ENV)):
            planner = stack.enter_context(_own_planner())
        asked = stack.enter_context(Planner(planner))
        try:
            found = asked.plan(**plan.question(), on_progress=on_progress)
        except InvalidFieldError as error:
            raise InvalidFieldError(map(_below_plan, error.violations)) from None
        except UnreachableError as error:
            raise UnreachableError(f"{FIELD}: {error.message}", remedy=_ELSEWHERE) from None
    files = {PLAN: json.dumps(dict(found.record), indent=1) + "\n", **found.files}
    return spec.with_answer({"degrees": found.degrees, "iteration_s": found.iteration_s, "files": files})


async def planned_meanwhile(
    spec: StudySpec, planner: str | None = None, on_progress: OnProgress | None = None
) -> StudySpec:
    """The same, in a thread next to an event loop. `on_progress` is called in another thread. The search ends
    soon after this is cancelled.
    """
    if spec.open_plan is None:
        return spec
    given_up = threading.Event()

    def watch(now: SearchProgress) -> None:
        if given_up.is_set():
            raise _GivenUpError
        if on_progress is not None:
            on_progress(now)

    try:
        return await asyncio.to_thread(planned, spec, planner, watch)
    except asyncio.CancelledError:
        given_up.set()
        raise


@contextmanager
def _own_planner() -> Iterator[str]:
    """Runs `headrace planner` while in this context; yields its address."""
    require(f"`{FIELD}` without a planner's address", "services", "numpy", "grpc_health", "grpc_reflection")
    with ExitStack() as stack:
        told = stack.enter_context(tempfile.TemporaryFile())
        reading, writing = os.pipe()
        line = stack.enter_context(os.fdopen(reading, "rb"))
        with os.fdopen(writing, "wb") as said:
            args = ["planner", "--listen", "127.0.0.1:0", "--workers", "1"]
            stack.enter_context(tethered(args, stdout=said, stderr=told))
        ready, _, _ = select.select([line], [], [], READY_TIMEOUT_S)
        address = line.readline().decode().rpartition(" ")[2].strip() if ready else ""
        if not address:
            told.seek(0)
            last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise HeadraceError(
                f"{FIELD}: no planner starts on this machine{f' ({last})' if last else ''}",
                remedy=f"See what `headrace planner` says, or give a planner's address in {ADDRESS_ENV}.",
            )
        yield address


def _below_plan(violation: Violation) -> Violation:
    """A planner's violation, translated to the names of a study file."""
    field = _WAY.sub(r"\1", violation.field.removeprefix("question."))
    remedy = _OPTION.sub(lambda option: f"{option[1].replace('-', '_')}:", violation.remedy)
    return replace(violation, field=f"{FIELD}.{field}" if field else FIELD, remedy=remedy)
