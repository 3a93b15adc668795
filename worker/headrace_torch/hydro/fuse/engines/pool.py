"""Members spread over spawned processes: the fallback for what cannot be fused, if there are cores for it.

The group's rows and buffers are in memory that all processes share; so is a matrix for gradients. A worker is a
function of that memory: it receives positions and a batch, writes gradients, and answers with losses. It keeps
nothing that a step needs, so one that dies is replaced and its step repeated, once. While a step runs, only
workers write, each to its own members' rows; the group writes between steps.

If a step fails for good, buffers are restored, `PoolError` is raised, and the state is as it was before the step.
"""

import ast
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor, nn

from headrace_torch.hydro.fuse.between import Between
from headrace_torch.hydro.fuse.engines.separate import SeparateEngine
from headrace_torch.hydro.fuse.engines.work import Outcome, Traits, Work
from headrace_torch.hydro.fuse.errors import FuseError, PoolError
from headrace_torch.hydro.fuse.obstacles import EngineName
from headrace_torch.hydro.fuse.states import MemberStates, Slot
from headrace_torch.hydro.fuse.twin import twin

_starting = threading.Lock()
STOP_S = 5.0  # how long a worker may take to end by itself


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: "Connection[Any, Any]"
    has: object = None  # identifies the memory that it was sent


class PoolEngine:
    """The engine `pool`; CPU only.

    Args:
        model: pickled once per worker.
        traits: of the model.
        workers: how many processes, at least 1.
    """

    def __init__(self, model: nn.Module, traits: Traits, workers: int) -> None:
        """Starts nothing: the first run does that."""
        self.name: EngineName = "pool"
        self._model, self._traits, self._count = model, traits, workers
        self._workers: list[_Worker] = []
        self._grads: Tensor | None = None
        self._sent: object = None

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the running workers."""
        return [one.process.pid for one in self._workers]

    def watch(self, _between: Between) -> None:
        """See `Engine.watch`."""
        raise FuseError(
            "a pool trains in separate processes, where no call can happen between the parts "
            "of a step: use engine='grouped', 'vmap' or 'separate'"
        )

    def run(self, states: MemberStates, positions: Sequence[int], work: Work, grads: Tensor) -> Outcome:
        """See `Engine.run`.

        Raises:
            PoolError: workers died twice at this step, or the model raised; the state is as it was before the
                step.
        """
        before = {name: states.buffers[name].clone() for name in self._traits.mutable}
        try:
            try:
                return self._attempt(states, positions, work, grads)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                self.close()
                _restore(states, before)
                return self._attempt(states, positions, work, grads)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            _restore(states, before)
            raise PoolError(
                "worker processes died twice at this step; the state is that before it"
            ) from error
        except PoolError:
            _restore(states, before)
            raise

    def close(self) -> None:
        """Ends the workers."""
        for one in self._workers:
            one.pipe.close()
        for one in self._workers:
            one.process.join(STOP_S)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            one.process.close()
        self._workers.clear()

    def _attempt(self, states: MemberStates, positions: Sequence[int], work: Work, grads: Tensor) -> Outcome:
        self._prepare(states)
        assert self._grads is not None
        shares = [list(range(len(positions)))[i :: self._count] for i in range(self._count)]
        busy = [(one, share) for one, share in zip(self._workers, shares, strict=True) if share]
        body = pickle.dumps(work)
        for one, share in busy:
            slots = {positions[i]: states.slots[positions[i]] for i in share}
            one.pipe.send((share, slots))
            one.pipe.send_bytes(body)
        losses: list[Tensor | None] = [None] * len(positions)
        unused: list[frozenset[str]] = [frozenset()] * len(positions)
        failure = ""
        for one, share in busy:
            answer = one.pipe.recv()
            if isinstance(answer, str):
                failure = failure or answer
                continue
            values, missing = answer
            for i, value, none in zip(share, values, missing, strict=True):
                losses[i], unused[i] = torch.tensor(value, dtype=torch.float64), none
                grads[i].copy_(self._grads[positions[i]])
        if failure:
            raise PoolError(
                f"a member failed in a worker process; the state is that before the step\n{failure}"
            )
        stacked = torch.stack([one for one in losses if one is not None])
        return Outcome(losses=stacked.to(states.rows.dtype), unused=unused)

    def _prepare(self, states: MemberStates) -> None:
        """Starts missing workers, and sends the memory to those that do not have it."""
        if self._sent is not states.token:
            self._grads = torch.zeros_like(states.rows)
            for value in (states.rows, self._grads, *states.buffers.values()):
                _share(value)
            self._sent = states.token
        context = multiprocessing.get_context("spawn")
        while len(self._workers) < self._count:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(theirs, self._model, self._traits, self._count), daemon=True
            )
            with children_without_script():
                process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))
        for one in self._workers:
            if one.has is not states.token:
                one.pipe.send((states.layout, states.rows, states.buffers, len(states), self._grads))
                one.has = states.token


def unreachable(*needed: Any) -> str:
    """Why worker processes could not load these objects; empty if they can."""
    try:
        body = pickle.dumps(needed)
    except Exception as error:  # noqa: BLE001  pickling runs the user's code
        return f"the model or the loss cannot be pickled ({error})"
    if b"__main__" in body and not _script_is_guarded():
        return (
            "the model or the loss is defined in the running script, which processes would run again: move it to "
            'a module, or put the code that runs behind if __name__ == "__main__"'
        )
    return ""


def _script_is_guarded() -> bool:
    """Whether the running script may be imported by a child: it has a main guard at its top level."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        return False
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    names = (ast.unparse(one.test) for one in tree.body if isinstance(one, ast.If))
    return any("__name__" in one and "__main__" in one for one in names)


@contextmanager
def children_without_script() -> Iterator[None]:
    """Lets spawned processes start without running the user's script, unless it has a main guard."""
    if _script_is_guarded():
        yield
        return
    real = multiprocessing.spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        return {key: one for key, one in real(name).items() if not key.startswith("init_main")}

    with _starting:
        multiprocessing.spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            multiprocessing.spawn.get_preparation_data = real


def _share(value: Any) -> None:
    """Moves a tensor to memory that processes share, in place."""
    value.share_memory_()


def _restore(states: MemberStates, before: dict[str, Tensor]) -> None:
    for name, value in before.items():
        states.buffers[name].copy_(value)


def serve(pipe: "Connection[Any, Any]", model: nn.Module, traits: Traits, workers: int) -> None:
    """A worker process: answers until its pipe is closed."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    engine = SeparateEngine(lambda _: twin(model), traits)
    states: MemberStates | None = None
    grads = torch.empty(0)
    while True:
        try:
            message = pipe.recv()
            if len(message) != 2:
                layout, rows, buffers, n, grads = message
                idle = [None] * n
                states = MemberStates(layout=layout, rows=rows, moments={}, buffers=buffers, slots=idle)  # type: ignore[arg-type]  # filled below
                continue
            body = pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        assert states is not None
        pipe.send(_answer(engine, states, message, body, grads))


def _answer(
    engine: SeparateEngine,
    states: MemberStates,
    message: tuple[list[int], dict[int, Slot]],
    body: bytes,
    grads: Tensor,
) -> str | tuple[list[float], list[frozenset[str]]]:
    """Runs some members; returns their losses and what each did not use, or what was raised."""
    share, slots = message
    try:
        work: Work = pickle.loads(body)  # noqa: S301  from the process that spawned this one
        positions = list(slots)
        for position, slot in slots.items():
            states.slots[position] = slot
        part = Work(
            loss_fn=work.loss_fn,
            batch=[work.batch[i] for i in share] if work.own else work.batch,
            own=work.own,
            rows=None if work.rows is None else tuple(work.rows[i] for i in share),
        )
        found = torch.zeros(len(positions), states.layout.row, dtype=grads.dtype)
        outcome = engine.run(states, positions, part, found)
        for position, row in zip(positions, found, strict=True):
            grads[position].copy_(row)
        return outcome.losses.tolist(), list(outcome.unused)
    except Exception:  # noqa: BLE001  the user's model may raise anything; the group raises it again
        return traceback.format_exc()
