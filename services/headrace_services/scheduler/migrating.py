"""`headrace migrate`: bring a database's schema up to date, or list the pending migrations."""

import asyncio
from typing import Annotated

import typer

from headrace.errors import HeadraceError


def migrate(
    database_url: Annotated[
        str,
        typer.Option(envvar="HEADRACE_DATABASE_URL", help="postgresql://user:password@host:5432/name"),
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Change nothing, only list the pending migrations. Exits with 1 if there are any."
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long to wait for replicas that are too old for the new schema to exit.",
        ),
    ] = 60.0,
) -> None:
    """Bring the database's schema up to date with this program.

    All pending migrations are one transaction: either all are applied, or nothing is
    changed. Replicas of older releases continue with the new schema if they can. If
    they cannot, they are notified, drain and exit, and the migration waits for that.

    `headrace up` and `headrace scheduler` migrate automatically when they start.

    \b
    headrace migrate --check
    headrace migrate --database-url postgresql://headrace@db/headrace
    """
    try:
        done = asyncio.run(_migrate(database_url, check=check, wait_s=wait))
    except HeadraceError as error:
        typer.echo(f"headrace migrate: {error}", err=True)
        raise typer.Exit(1) from None
    if not done:
        raise typer.Exit(1)


async def _migrate(database_url: str, *, check: bool, wait_s: float) -> bool:
    """Return whether nothing is left to do."""
    from headrace_services.scheduler.store import schema
    from headrace_services.scheduler.store.database import open_engine, reached
    from headrace_services.scheduler.store.migrate import look, migrate

    engine = open_engine(database_url, pool_size=1)
    try:
        async with reached(engine):
            found = await look(engine)
            typer.echo(
                f"The schema is {found.standing.revision or 'empty'}; this program knows {schema.head()}."
            )
            for replica in found.replicas:
                old = schema.number(replica.revision) < schema.number(found.needed)
                what = "; it is too old for the new schema, and will exit" if old else ""
                typer.echo(f"A replica runs: {replica.name}, which knows {replica.revision}{what}.")
            if not found.pending:
                typer.echo("There is nothing to do.")
                return True
            for one in found.pending:
                typer.echo(f"{'due' if check else 'doing'}: {one.revision} {one.words}")
            if check:
                return False
            await migrate(
                engine, wait_s=wait_s, say=lambda line: typer.echo(line[:1].upper() + line[1:] + ".")
            )
            return True
    finally:
        await engine.dispose()
