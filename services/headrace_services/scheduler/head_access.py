"""The first tokens of a head node, made in its database: `headrace up --listen` runs this before its scheduler.

    python -m headrace_services.scheduler.head_access FOLDER [WORKER]    # with HEADRACE_DATABASE_URL

    FOLDER/token   an admin's token. It stays while this database accepts it; another one takes its place if it is
                   unknown there, revoked, or ends within a week.
    FOLDER/join    with a WORKER: a join token for it alone, for one use within a quarter of an hour; a new one each
                   time. A worker with a valid certificate does not use it.

Both have mode 0600. A token is stored before its file is written, so a kill between the two leaves a token that nobody
knows. Whoever runs this has the database, and so everything.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.durable import replace
from headrace.errors import HeadraceError
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity import join_tokens
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token, is_same, read
from headrace_services.scheduler.rpc.identity_service import make
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.database import open_engine, reached, transaction
from headrace_services.scheduler.store.migrate import migrate
from headrace_services.scheduler.store.tokens import TokenRows

TOKEN: Final = "token"  # noqa: S105  # a file's name
JOIN: Final = "join"
NAME: Final = "head"
"""What `headrace token list` calls the token."""
LIVES: Final = timedelta(days=90)
RENEWED_BEFORE: Final = timedelta(days=7)
JOIN_LIVES: Final = timedelta(minutes=15)


async def ensure(database_url: str, folder: Path, worker: str | None) -> None:
    """Put the tokens into the folder. Raises HeadraceError if the database does not answer, or the folder cannot
    be written."""
    engine = open_engine(database_url, pool_size=1)
    try:
        async with reached(engine):
            await migrate(engine)
            if not await _is_accepted(engine, await asyncio.to_thread(_read, folder / TOKEN)):
                lives_s = LIVES.total_seconds()
                made, _ = await make(
                    engine, name=NAME, project=DEFAULT_PROJECT, role=Role.ADMIN, lifetime_s=lives_s
                )
                replace(folder / TOKEN, made.text.encode() + b"\n")
            if worker is not None:
                joining = join_tokens.new_token()
                async with transaction(engine) as conn:
                    await joins.create(conn, joining, worker=worker, uses=1, lifetime=JOIN_LIVES)
                replace(folder / JOIN, joining.text.encode() + b"\n")
    except OSError as error:
        raise HeadraceError(
            f"the first token cannot be kept in {folder}: {error.strerror or error}.",
            remedy="Make the folder writable for this user, or give another --home.",
        ) from error
    finally:
        await engine.dispose()


def _read(file: Path) -> Token | None:
    try:
        return read(file.read_text("ascii").strip())
    except (FileNotFoundError, UnicodeDecodeError):
        return None


async def _is_accepted(engine: AsyncEngine, token: Token | None) -> bool:
    """Whether a token works in this database, for at least a week."""
    stored = None if token is None else await TokenRows(engine).find(token.id)
    if token is None or stored is None or stored.revoked or not is_same(token.digest, stored.digest):
        return False
    return stored.left_s is None or stored.left_s > RENEWED_BEFORE.total_seconds()


if __name__ == "__main__":
    try:
        asyncio.run(
            ensure(os.environ["HEADRACE_DATABASE_URL"], Path(sys.argv[1]), next(iter(sys.argv[2:]), None))
        )
    except HeadraceError as error:
        sys.exit(str(error))
