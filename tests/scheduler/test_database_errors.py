"""What the database's errors mean: another transaction came first, the database is overloaded, or we have a
defect."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler.engine.retries import lost_a_race, may_pass
from headrace_services.scheduler.store.database import is_strained, transaction

ANOTHER_STUDY = (
    "INSERT INTO study (name, uid, state, spec, planned) SELECT name, 'u', state, spec, planned FROM study"
)
A_TRIAL_OF_NOBODY = "UPDATE trial SET study_id = study_id + 1"
NO_SUCH_STATE = "UPDATE trial SET state = 'ASLEEP'"
NO_NAME = "UPDATE study SET name = NULL"


async def sleep_too_long(engine: AsyncEngine) -> None:
    """Exceed the statement timeout."""
    async with transaction(engine) as conn:
        await conn.execute(text("SET LOCAL statement_timeout = 1"))
        await conn.execute(text("SELECT pg_sleep(1)"))


async def change(engine: AsyncEngine, statement: str) -> None:
    """Run one statement in a transaction of its own."""
    async with transaction(engine) as conn:
        await conn.execute(text(statement))


@pytest.mark.parametrize(
    ("statement", "lost"),
    [(ANOTHER_STUDY, True), (A_TRIAL_OF_NOBODY, True), (NO_SUCH_STATE, False), (NO_NAME, False)],
)
async def test_only_another_transactions_row_is_a_reason_to_try_again(
    engine: AsyncEngine, statement: str, lost: bool
) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    await site.kick()
    with pytest.raises(Exception, match=r"violates|no transition") as raised:
        await change(engine, statement)
    assert lost_a_race(raised.value) is lost
    assert may_pass(raised.value) is lost


async def test_a_statement_that_takes_too_long_is_a_strained_database_to_every_caller(
    engine: AsyncEngine,
) -> None:
    with pytest.raises(DatabaseUnavailableError, match="could not do this now") as raised:
        await sleep_too_long(engine)
    assert is_strained(raised.value)
    assert may_pass(raised.value)
    assert not lost_a_race(raised.value)
