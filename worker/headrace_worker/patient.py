"""A call that may hang, such as one to a driver: it takes no thread from the pool, holds up no exit, and is not
repeated while it hangs."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Patient(Generic[_Result]):
    """Calls a function in a thread of its own, one call at a time."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self._running: asyncio.Future[_Result] | None = None
        self._hangs = False

    async def result(self, patience_s: float) -> _Result:
        """Returns what the function returns. Raises `TimeoutError` if that takes too long, and at once while an earlier
        call still hangs."""
        if self._running is None or self._running.done():
            self._running, self._hangs = self._begin(), False
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), 0.0 if self._hangs else patience_s)
        except TimeoutError:
            self._hangs = True
            raise

    def _begin(self) -> "asyncio.Future[_Result]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()

        def run() -> None:
            try:
                result = self._call()
            except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
                told, value = done.set_exception, error
            else:
                told, value = done.set_result, result  # type: ignore[assignment]  # the two belong together
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if done.done() else told(value))

        threading.Thread(target=run, name="may hang", daemon=True).start()
        return done
