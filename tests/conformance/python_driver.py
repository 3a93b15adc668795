"""The driver of the Python clients: `python python_driver.py blocking`, or `asyncio`.

Each operation is written once. With the blocking client nothing in it waits for an event loop, so `_finished` runs
it to its end on a thread. With the async client it is a task.
"""

import asyncio
import inspect
import itertools
import json
import math
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from headrace import AsyncClient, Client
from headrace.client import Planner
from headrace.errors import CallCancelledError, HeadraceError, InvalidFieldError, entry_of
from headrace.spec import from_proto
from headrace.v1 import planner_pb2, spec_pb2

Answer = dict[str, Any]
_BY_SECONDS = 0.3


class Driver:
    """Carries out commands by one of the two clients."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._clients: dict[str, Any] = {}
        self._made: dict[str, Answer] = {}
        self._asked: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._cancels: dict[int, Callable[[], object]] = {}
        self._output = threading.Lock()

    def say(self, answer: Answer) -> None:
        """Writes a line."""
        with self._output:
            sys.stdout.write(json.dumps(_plain(answer)) + "\n")
            sys.stdout.flush()

    async def carry_out(self, command: Answer) -> None:
        """Does what a command says, and answers it."""
        number = command["id"]
        try:
            operation = getattr(self, f"_op_{command['op']}")
            self.say({"id": number, "ok": await operation(command, **command.get("args", {}))})
        except asyncio.CancelledError:
            self.say({"id": number, "error": _error(CallCancelledError("The caller cancelled the call."))})
        except HeadraceError as error:
            self.say({"id": number, "error": _error(error)})
        except Exception as error:  # noqa: BLE001  (the harness is told of every defect)
            self.say({"id": number, "broken": f"{type(error).__name__}: {error}"})
        finally:
            self._cancels.pop(number, None)

    def can_cancel(self, number: int, how: Callable[[], object]) -> None:
        """Records how a running command is cancelled."""
        self._cancels[number] = how

    # ---- the connection ----

    async def _op_hello(self, _: Answer) -> Answer:
        return {"client": f"python-{self.kind}", "version": version("headrace"), "lacks": {}}

    async def _op_connect(self, command: Answer, **settings: Any) -> Answer:
        self._made[command["client"]] = settings
        self._clients[command["client"]] = self._new(settings)
        return {}

    def _new(self, settings: Answer) -> Any:
        named = dict(settings)
        if "ca" in named:
            named["tls_ca"] = Path(named.pop("ca"))
        return (Client if self.kind == "blocking" else AsyncClient)(named.pop("address"), **named)

    async def _op_disconnect(self, command: Answer) -> Answer:
        await _value(self._clients.pop(command["client"]).close())
        return {}

    async def _op_cancel(self, _: Answer, id: int) -> Answer:  # noqa: A002  (the protocol's name)
        if how := self._cancels.get(id):
            how()
        return {}

    async def _client(self, command: Answer) -> Any:
        if "timeout_s" not in command:
            return self._clients[command["client"]]
        # A client has one timeout for all calls; a second client has this call's.
        return self._new({**self._made[command["client"]], "timeout_s": command["timeout_s"]})

    async def _study(self, command: Answer, study: str) -> Any:
        return (await self._client(command)).study(study)

    # ---- studies ----

    async def _op_create_study(self, command: Answer, study: str, spec: Answer) -> Answer:
        found = from_proto(json_format.ParseDict(spec, spec_pb2.StudySpec()))
        made = await _value((await self._client(command)).create_study(study, found))
        return _study(await _value(made.status()))

    async def _op_get_study(self, command: Answer, study: str) -> Answer:
        return _study(await _value((await self._study(command, study)).status()))

    async def _op_pause_study(self, command: Answer, study: str) -> Answer:
        return _study(await _value((await self._study(command, study)).pause()))

    async def _op_resume_study(self, command: Answer, study: str) -> Answer:
        return _study(await _value((await self._study(command, study)).resume()))

    async def _op_stop_study(self, command: Answer, study: str) -> Answer:
        return _study(await _value((await self._study(command, study)).stop()))

    async def _op_delete_study(self, command: Answer, study: str) -> Answer:
        await _value((await self._study(command, study)).delete())
        return {}

    async def _op_list_studies(self, command: Answer) -> Answer:
        return {"studies": [_study(one) for one in await _value((await self._client(command)).studies())]}

    async def _op_add_trials(self, command: Answer, study: str, parameters: list[Answer]) -> Answer:
        added = await _value((await self._study(command, study)).add_trials(parameters))
        return {"trials": [_trial(one) for one in added]}

    async def _op_get_trial(self, command: Answer, study: str, trial: int) -> Answer:
        return _trial(await _value((await self._study(command, study)).trial(trial).info()))

    async def _op_stop_trial(self, command: Answer, study: str, trial: int) -> Answer:
        return _trial(await _value((await self._study(command, study)).trial(trial).stop()))

    async def _op_list_trials(self, command: Answer, study: str, states: list[str] | None = None) -> Answer:
        wanted = [state.lower() for state in states or ()]
        handle = await self._study(command, study)
        found = await _value(handle.trials(wanted) if wanted else handle.trials())
        return {"trials": [_trial(one) for one in found]}

    async def _op_list_reports(self, command: Answer, study: str) -> Answer:
        found = await _value((await self._study(command, study)).reports())
        return {
            "reports": [{"trial": one.trial, "step": one.step, "metrics": dict(one.metrics)} for one in found]
        }

    async def _op_watch(self, command: Answer, study: str, after: int = 0) -> Answer:
        handle = await self._study(command, study)
        async for update in _each(handle.watch(after)):
            events = update.events
            kinds = [_kind(event.detail) for event in events]
            item = {"cursors": [e.cursor for e in events], "kinds": kinds, "study": _study(update.study)}
            self.say({"id": command["id"], "item": item})
        return {}

    # ---- ask and tell ----

    async def _op_suggest(self, command: Answer, study: str, **settings: Any) -> Answer:
        asked = await _value((await self._study(command, study)).ask(**settings))
        if asked is None:
            return {"asked": None, "done": True}
        number = next(self._numbers)
        self._asked[number] = asked
        asked.held = False  # scenarios say when a lease is renewed; this client renews it by itself
        info = asked._suggestion.trial  # the handle shows only its parts
        return {"asked": number, "trial": _trial(info), "next_milestone": asked.next_milestone, "done": False}

    async def _op_report(
        self, _: Answer, asked: int, step: int, metrics: Answer, checkpoint_uri: str = ""
    ) -> Answer:
        decision = await _value(
            self._asked[asked].report(step, _floats(metrics), checkpoint_uri=checkpoint_uri)
        )
        return {"action": decision.action.upper(), "next_milestone": decision.next_milestone}

    async def _op_keep_alive(self, _: Answer, asked: int, seconds: float) -> Answer:
        handle = self._asked[asked]
        handle.held = True
        handle.transport.renewer.hold(handle, _BY_SECONDS)
        await self._sleep(seconds)
        handle.held = False
        return {}

    async def _op_complete(self, _: Answer, asked: int, error: str | None = None) -> Answer:
        return _trial(await _value(self._asked[asked].complete(error)))

    async def _op_release(self, _: Answer, asked: int) -> Answer:
        return _trial(await _value(self._asked[asked].give_back()))

    async def _op_loop(self, command: Answer, study: str, loops: int, **settings: Any) -> Answer:
        handle = await self._study(command, study)
        counts = {"reports": 0, "stale": 0}
        began = time.monotonic()
        work = [self._loop(handle, counts, f"loop-{number}", **settings) for number in range(loops)]
        if self.kind == "asyncio":
            await asyncio.gather(*work)
        else:
            with ThreadPoolExecutor(loops) as threads:
                list(threads.map(_finished, work))
        return {**counts, "seconds": time.monotonic() - began}

    async def _loop(
        self,
        study: Any,
        counts: dict[str, int],
        client_id: str,
        lease_s: float | None = None,
        pause_s: float = 0.0,
    ) -> None:
        async for asked in _each(study.ask_all(client_id=client_id, lease_s=lease_s)):
            step, action = asked.step, "continue"
            try:
                while action == "continue":
                    step += 1
                    if pause_s:
                        await self._sleep(pause_s)
                    loss = asked.params["x"] + 1 / step
                    uri = f"mem:/{asked.number}/{step}"
                    decision = await _value(asked.report(step, loss=loss, checkpoint_uri=uri))
                    counts["reports"] += 1
                    action = decision.action
            except HeadraceError as error:
                if (found := entry_of(error)) is None or found.reason != "LEASE_STALE":
                    raise
                counts["stale"] += 1

    async def _sleep(self, seconds: float) -> None:
        if self.kind == "asyncio":
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251  (on a thread of its own)

    # ---- plans ----

    async def _op_plan(
        self, command: Answer, address: str, model: str, cluster: str, options: Answer | None = None
    ) -> Answer:
        question = json_format.ParseDict(options or {}, planner_pb2.PlanQuestion())
        given = {field.name: value for field, value in question.ListFields()}

        def search() -> Answer:
            with Planner(address) as planner:
                call = planner.search(model, cluster, **given)
                self.can_cancel(command["id"], call.cancel)
                plan = call.result(lambda now: self.say({"id": command["id"], "item": _progress(now)}))
                return {
                    "iteration_s": plan.iteration_s,
                    "degrees": dict(plan.degrees),
                    "complete": plan.complete,
                }

        if self.kind == "blocking":
            return search()
        return await asyncio.to_thread(search)


def _progress(now: Any) -> Answer:
    return {"solved": now.solved, "tuples": now.tuples}


def _study(info: Any) -> Answer:
    counts = info.counts
    best = info.leader.score if info.leader is not None else None
    return {
        "name": info.name,
        "state": info.state.upper(),
        "detail": info.detail,
        "cursor": info.cursor,
        "trials": counts.pending + counts.running + counts.paused + counts.resumed + counts.terminated,
        "best": best,
    }


def _trial(info: Any) -> Answer:
    return {
        "number": info.number,
        "state": info.state.upper(),
        "step": info.step,
        "value": info.value,
        "params": dict(info.last_params),
        "reason": info.reason.upper() if info.reason else "",
        "checkpoint_uri": info.checkpoint.uri if info.checkpoint else "",
        "checkpoint_step": info.checkpoint.step if info.checkpoint else 0,
    }


def _error(error: HeadraceError) -> Answer:
    entry = entry_of(error)
    violations = error.violations if isinstance(error, InvalidFieldError) else ()
    return {
        "code": entry.status if entry else "UNKNOWN",
        "reason": (entry.reason if entry else None) or "",
        "message": error.message,
        "remedy": error.remedy,
        "violations": [
            {"field": one.field, "value": one.value, "message": one.message, "remedy": one.remedy}
            for one in violations
        ],
        "type": type(error).__name__,
    }


def _kind(detail: object) -> str:
    """`TrialMoved` is `trial_moved`."""
    if detail is None:
        return "unknown"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(detail).__name__).lower()


def _floats(metrics: Answer) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _plain(value: Any) -> Any:
    """The value as JSON allows it: without NaN and infinities."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


async def _value(found: Any) -> Any:
    """The result of a call of either client."""
    return await found if isinstance(found, Awaitable) else found


async def _each(found: Any) -> AsyncIterator[Any]:
    """The items over which either client iterates."""
    if hasattr(found, "__aiter__"):
        async for one in found:
            yield one
    else:
        for one in found:
            yield one


def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Runs work that never waits for an event loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError(f"{inspect.getcoroutinestate(work)}: it waits for an event loop")


def _blocking(driver: Driver) -> None:
    for line in sys.stdin:
        work = driver.carry_out(json.loads(line))
        threading.Thread(target=_finished, args=(work,), daemon=True).start()


async def _asyncio(driver: Driver) -> None:
    tasks: set[asyncio.Task[None]] = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        task = asyncio.create_task(driver.carry_out(command))
        driver.can_cancel(command["id"], task.cancel)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        asyncio.run(_asyncio(Driver("asyncio")))
    else:
        _blocking(Driver("blocking"))
