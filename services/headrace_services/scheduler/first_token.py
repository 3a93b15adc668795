"""A token made directly in the database: the first one, and the way back in if all admins lost theirs.

Whoever has the database has everything, so no token is required here.
"""

import asyncio

from headrace_services.identity.roles import Role
from headrace_services.scheduler.rpc.identity_service import check_project, make
from headrace_services.scheduler.store.database import open_engine, reached
from headrace_services.scheduler.store.migrate import migrate


def create(
    database_url: str, *, name: str, project: str, role: str, lifetime_s: float | None
) -> tuple[str, str]:
    """Make a token in a database, whose schema is brought up to date. Returns its id and its text.

    Raises InvalidFieldError, or DatabaseUnavailableError if the database does not answer.
    """
    check_project(project)
    return asyncio.run(_create(database_url, name, project, Role(role), lifetime_s))


async def _create(
    database_url: str, name: str, project: str, role: Role, lifetime_s: float | None
) -> tuple[str, str]:
    engine = open_engine(database_url, pool_size=1)
    try:
        async with reached(engine):
            await migrate(engine)
            token, _ = await make(engine, name=name, project=project, role=role, lifetime_s=lifetime_s)
    finally:
        await engine.dispose()
    return token.id, token.text
