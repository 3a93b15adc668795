"""Database checks that fail: the log mentions each change once."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler.engine import budgets, followers
from headrace_services.scheduler.engine.budgets import Budgets
from headrace_services.scheduler.engine.followers import Followers
from headrace_services.scheduler.suggesting import suggester
from headrace_services.scheduler.suggesting.suggester import Suggester

AWAY, BUG = DatabaseUnavailableError("the database does not answer"), KeyError("a bug")
OUTCOMES = [None, AWAY, AWAY, AWAY, BUG, BUG, None, None, AWAY]


def hub() -> Any:
    """A hub whose database fails or succeeds as listed, check by check, and finds nothing; then the loop is
    cancelled."""
    left = iter(OUTCOMES)

    @asynccontextmanager
    async def connection() -> Any:
        error = next(left, asyncio.CancelledError())
        if error is not None:
            raise error

        async def execute(*_: Any) -> Any:
            return []

        yield SimpleNamespace(execute=execute, scalars=execute)

    engine = SimpleNamespace(begin=connection, connect=connection)
    return SimpleNamespace(engine=engine, closing=False)


@pytest.mark.parametrize(
    ("module", "make", "wanted"),
    [
        (budgets, Budgets, "studies whose hours are to be counted"),
        (followers, lambda hub: Followers(hub, None), "studies whose wait is over"),  # type: ignore[arg-type]  # not read here
        (suggester, lambda hub: Suggester(hub, None, None), "studies that want proposals"),  # type: ignore[arg-type]  # not read here
    ],
)
async def test_a_database_that_is_away_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: Any,
    make: Callable[[Any], Any],
    wanted: str,
) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY_S" if module is suggester else "LOOK_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO), suppress(asyncio.CancelledError):
        await make(hub()).run()
    told = [record.getMessage() for record in caplog.records]
    away, bug, again, away_again = told
    assert away == away_again
    assert away.startswith(f"could not look for {wanted}: ")
    assert "the database does not answer" in away
    assert "a bug" in bug
    assert again == f"can look for {wanted} again"
    traced = [bool(record.exc_info) for record in caplog.records]
    assert traced == [False, True, False, False], "what nobody expected comes with its traceback"
