"""Makes the join tokens of the workers of docker-compose.yml, in the database itself.

    python3 compose_join.py FOLDER NAME…

A worker without a certificate gets a token for its name in FOLDER/NAME. The token is valid for one join within a
quarter of an hour. The worker removes that file when it has joined.
"""

import asyncio
import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from headrace.durable import replace
from headrace.errors import JoinTokenNotFoundError
from headrace_services.identity import join_tokens
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.database import open_engine, reached, transaction

LIVES = timedelta(minutes=15)
LASTS = timedelta(days=1)
"""A certificate that expires sooner than this was not renewed: its worker has been away for long."""
SHARED = "token"
"""What earlier releases gave to all workers: a token for any name, valid for thirty days."""


async def make(database_url: str, folder: Path, workers: list[str]) -> None:
    """Put a token for each worker that needs one into the folder."""
    engine = open_engine(database_url, pool_size=1)
    try:
        async with reached(engine), transaction(engine) as conn:
            shared = folder / SHARED
            if shared.exists() and (token := join_tokens.id_in(shared.read_text())):
                with suppress(JoinTokenNotFoundError):
                    await joins.revoke(conn, token)
            for worker in workers:
                file = folder / worker
                file.unlink(missing_ok=True)
                if not await joins.has_joined(conn, worker, lasts=LASTS):
                    made = join_tokens.new_token()
                    await joins.create(conn, made, worker=worker, uses=1, lifetime=LIVES)
                    replace(file, made.text.encode())
        shared.unlink(missing_ok=True)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(make(os.environ["HEADRACE_DATABASE_URL"], Path(sys.argv[1]), sys.argv[2:]))
