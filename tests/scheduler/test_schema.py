"""The migrations create what the tables declare, once, however many replicas start at the same time."""

import asyncio

import psycopg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateColumn

from headrace_services.scheduler.core.study_status import Standing
from headrace_services.scheduler.store import rows
from headrace_services.scheduler.store.database import open_engine
from headrace_services.scheduler.store.migrate import alembic_config, migrate
from headrace_services.scheduler.store.tables import metadata


async def test_the_migrations_and_the_tables_agree(engine: AsyncEngine) -> None:
    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)

    async with engine.connect() as conn:
        assert await conn.run_sync(differences) == []


async def test_the_names_of_constraints_agree(engine: AsyncEngine) -> None:
    declared = {
        f"{table.name}.{constraint.name}"
        for table in metadata.tables.values()
        for constraint in table.constraints
    }
    query = (
        "SELECT conrelid::regclass || '.' || conname FROM pg_constraint"
        " WHERE contype IN ('c', 'p', 'u', 'f') AND connamespace = 'public'::regnamespace"
    )
    async with engine.connect() as conn:
        found = {row[0] for row in await conn.execute(text(query))}
    assert {name for name in found if not name.startswith("alembic")} == declared


async def test_computed_columns_agree(engine: AsyncEngine) -> None:
    query = text(
        "SELECT attname, pg_get_expr(adbin, adrelid) FROM pg_attrdef"
        " JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum"
        " WHERE adrelid = to_regclass(:name) AND attgenerated = 's'"
    )
    async with engine.connect() as conn:
        for table in metadata.tables.values():
            columns = [column for column in table.columns if column.computed is not None]
            if columns:
                spelled = ", ".join(
                    str(CreateColumn(column).compile(dialect=conn.dialect)) for column in columns
                )
                plain = "spec json, standing jsonb"
                await conn.execute(text(f"CREATE TEMP TABLE declared_{table.name} ({plain}, {spelled})"))
                declared = dict((await conn.execute(query, {"name": f"declared_{table.name}"})).all())
                assert dict((await conn.execute(query, {"name": f"public.{table.name}"})).all()) == declared
                assert set(declared) == {column.name for column in columns}


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
        ).scalar_one() == ScriptDirectory.from_config(alembic_config()).get_current_head()
    for engine in engines:
        await engine.dispose()


async def test_every_foreign_key_has_an_index(engine: AsyncEngine) -> None:
    """Deleting a row looks for rows that refer to it. Without an index it reads their whole table."""
    query = text(
        "SELECT conrelid::regclass || '.' || conname FROM pg_constraint AS k WHERE contype = 'f' AND NOT EXISTS ("
        " SELECT FROM pg_index AS i WHERE i.indrelid = k.conrelid"
        "  AND (i.indkey::int2[])[0:cardinality(k.conkey) - 1] @> k.conkey"
        # An index on non-null keys will do: every row that refers to another one has a key.
        "  AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) ~ '^\\(\\w+ IS NOT NULL\\)$'))"
    )
    async with engine.connect() as conn:
        assert (await conn.execute(query)).scalars().all() == []


def test_a_standing_that_an_older_scheduler_wrote_is_read() -> None:
    known = rows.standing_columns(Standing(wants_slots=2, avoided={"w": "1"}, kept=(4, 1.5)))
    for key in known:
        older = {name: value for name, value in known.items() if name != key}
        assert rows.standing_columns(rows.standing(older)) == {
            **known,
            key: rows.standing_columns(Standing())[key],
        }
    assert rows.standing({}) == Standing()
