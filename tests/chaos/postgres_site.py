"""A Postgres that a test may crash and keep down as long as it likes, which `headrace up` would not allow."""

from pathlib import Path

from headrace_services.up.child import Child
from headrace_services.up.postgres import EmbeddedPostgres


class PostgresSite:
    """The embedded server, started and stopped by hand."""

    def __init__(self, folder: Path) -> None:
        self._postgres = EmbeddedPostgres(data_dir=folder / "postgres", log_path=folder / "postgres.log")
        self._child = Child(self._postgres.child())

    @property
    def url(self) -> str:
        """For psycopg, and for `--database-url`."""
        return self._postgres.url.replace("+psycopg", "")

    async def start(self) -> None:
        """Start the server; returns when it answers."""
        await self._child.start()

    async def crash(self) -> None:
        """`immediate` shutdown: no checkpoint, connections cut, recovery at the next start."""
        self._child.kill()
        await self._child.wait()

    async def stop(self) -> None:
        """Stop it cleanly, if it runs."""
        await self._child.stop()
