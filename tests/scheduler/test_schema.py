"""The migrations create what the tables say, once, however many replicas start at the same time."""

import asyncio

import psycopg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.store.database import open_engine
from headrace_services.scheduler.store.migrate import head_revision, migrate
from headrace_services.scheduler.store.tables import metadata


async def test_the_migrations_and_the_tables_agree(engine: AsyncEngine) -> None:
    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)

    async with engine.connect() as conn:
        assert await conn.run_sync(differences) == []


async def test_check_constraints_agree(engine: AsyncEngine) -> None:
    declared = {
        f"{table.name}.{c.name}"
        for table in metadata.tables.values()
        for c in table.constraints
        if type(c).__name__ == "CheckConstraint"
    }
    query = (
        "SELECT conrelid::regclass || '.' || conname FROM pg_constraint WHERE contype = 'c' AND conrelid <> 0"
    )
    async with engine.connect() as conn:
        found = {row[0] for row in await conn.execute(text(query))}
    assert {name for name in found if not name.startswith("alembic")} == declared


async def test_replicas_that_start_together_migrate_once(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS together")
        conn.execute("CREATE DATABASE together")
    engines = [
        open_engine(
            str(make_url(postgres_url).set(database="together").render_as_string(hide_password=False))
        )
        for _ in range(4)
    ]
    await asyncio.gather(*(migrate(engine) for engine in engines))
    async with engines[0].connect() as conn:
        assert (
            await conn.execute(text("SELECT version_num FROM alembic_version"))
        ).scalar_one() == head_revision()
    for engine in engines:
        await engine.dispose()
