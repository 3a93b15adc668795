"""Replicas of two releases on one database: the old one keeps working with a new schema, or says why not and
exits."""

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import typer
from alembic.script import ScriptDirectory
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace import Client
from headrace.errors import HeadraceError
from headrace_services.scheduler import migrating
from headrace_services.scheduler.engine.schema_watch import SchemaWatch
from headrace_services.scheduler.process import Settings, serve
from headrace_services.scheduler.store import schema
from headrace_services.scheduler.store.migrate import alembic_config, guard, look, migrate
from headrace_services.scheduler.store.schema import Migration, SchemaError, Standing

SERVING = "headrace scheduler: serving on "
HEAD = schema.head()
NEXT = f"{schema.number(HEAD) + 1:04d}"
SPEC = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0, "high": 1}},
    "policy": {"kind": "run_all"},
    "trials": 1,
    "steps": 1,
}
MIGRATION = '''"""Something new."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"
{needs}


def upgrade() -> None:
    """Add a table."""
    op.execute("CREATE TABLE something_new (id BIGINT)")
    {more}
'''


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes the migrations of a later release. From then on, this process uses them as its own."""

    def make(*, needs: str | None, more: str = "") -> Path:
        folder = tmp_path / "migrations"
        shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        said = "" if needs is None else f'min_compatible = "{needs}"'
        text = MIGRATION.format(revision=NEXT, before=HEAD, needs=said, more=more)
        (folder / "versions" / f"{NEXT}_something.py").write_text(text)
        monkeypatch.setattr(schema, "MIGRATIONS", folder)
        return folder

    return make


class Replicas:
    """Scheduler processes, of this release or of a later one."""

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, folder: Path | None = None) -> "subprocess.Popen[str]":
        program = ["-m", "headrace.cli"]
        if folder is not None:
            program = [str(Path(__file__).with_name("newer_program.py")), str(folder)]
        command = [sys.executable, *program, "scheduler", "--listen", "127.0.0.1:0", "--log-level", "error"]
        command += ["--database-url", self.database_url, "--drain-grace", "5", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    @staticmethod
    def address(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip().removeprefix(SERVING)


@pytest.fixture
def replicas(database_url: str) -> Iterator[Replicas]:
    made = Replicas(database_url)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def revision(database_url: str) -> str:
    with psycopg.connect(database_url) as conn:
        (found,) = conn.execute("SELECT version_num FROM alembic_version").fetchone() or ("",)
    return found


@pytest.mark.full
async def test_an_old_replica_continues_beside_a_schema_that_lets_it(
    engine: AsyncEngine, replicas: Replicas, newer: Callable[..., Path]
) -> None:
    old = replicas.start()
    address = await asyncio.to_thread(replicas.address, old)
    newer(needs=HEAD)
    failures: list[HeadraceError] = []
    written, over = [], threading.Event()

    def write() -> None:
        with Client(address, timeout_s=60) as client:
            while not over.is_set():
                try:
                    client.create_study(f"s{len(written)}", SPEC)
                except HeadraceError as error:
                    failures.append(error)
                    return
                written.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    while len(written) < 3:
        await asyncio.sleep(0.01)
    (applied,) = await migrate(engine)
    assert applied.revision == NEXT
    so_far = len(written)
    while len(written) < so_far + 3 and not failures:
        await asyncio.sleep(0.01)
    over.set()
    writer.join(20)
    assert not failures
    assert old.poll() is None
    assert revision(replicas.database_url) == NEXT


@pytest.mark.full
async def test_an_old_replica_leaves_before_a_schema_that_it_does_not_fit(
    replicas: Replicas, newer: Callable[..., Path]
) -> None:
    old = replicas.start()
    address = await asyncio.to_thread(replicas.address, old)
    with Client(address, timeout_s=60) as client:
        client.create_study("kept", SPEC)
    new = replicas.start(folder=newer(needs=None))
    address = await asyncio.to_thread(replicas.address, new)
    _, said = await asyncio.to_thread(old.communicate, timeout=30)
    assert old.returncode == 1
    assert f"a migration waits that needs programs which know {NEXT}, and this one knows {HEAD}" in said
    assert "Update this program" in said
    assert revision(replicas.database_url) == NEXT
    with Client(address, timeout_s=60) as client:
        assert [study.name for study in client.studies()] == ["kept"]


async def test_a_migration_changes_nothing_while_an_old_replica_stays(
    engine: AsyncEngine, database_url: str, newer: Callable[..., Path]
) -> None:
    newer(needs=None)
    said: list[str] = []
    async with guard(engine, "headrace scheduler old:17") as stays:
        await schema.use(stays, HEAD)
        with pytest.raises(SchemaError) as refusal:
            await migrate(engine, wait_s=0.5, say=said.append)
        assert (
            f"still run after 0.5 s: headrace scheduler old:17 ({HEAD}); nothing was" in refusal.value.message
        )
        assert refusal.value.remedy
        assert "waiting for replicas that are too old" in said[0]
        assert revision(database_url) == HEAD
        found = await look(engine)
        assert [one.revision for one in found.pending] == [NEXT]
        assert [one.revision for one in found.replicas] == [HEAD]
    assert [one.revision for one in await migrate(engine)] == [NEXT]


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    engine: AsyncEngine, database_url: str, newer: Callable[..., Path]
) -> None:
    newer(needs=HEAD, more='op.execute("SELECT 1 / 0")')
    with pytest.raises(Exception, match="division by zero"):
        await migrate(engine)
    assert revision(database_url) == HEAD
    with psycopg.connect(database_url) as conn:
        assert conn.execute("SELECT to_regclass('something_new')").fetchone() == (None,)


async def test_a_watch_that_is_told_leaves_and_one_that_fits_stays(
    engine: AsyncEngine, newer: Callable[..., Path]
) -> None:
    reasons: list[str] = []
    watch = SchemaWatch(engine, reasons.append, ours=HEAD)
    task = asyncio.create_task(watch.run())
    await watch.looked.wait()
    newer(needs=HEAD)
    await migrate(engine)
    async with asyncio.timeout(60):
        with psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(False)) as conn:
            conn.execute("UPDATE schema_version SET min_compatible = '9999' WHERE revision = %s", (NEXT,))
            conn.execute(f"NOTIFY {schema.CHANNEL}")
        while not reasons:
            await asyncio.sleep(0.01)
    assert "needs programs that know 9999" in reasons[0]
    task.cancel()


def test_a_schema_that_lacks_some_is_reported_and_done(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS lacking")
        conn.execute("CREATE DATABASE lacking")
    url = make_url(postgres_url).set(database="lacking").render_as_string(hide_password=False)
    with pytest.raises(SchemaError, match="the database lacks") as refusal:
        asyncio.run(serve(Settings(database_url=url, listen="127.0.0.1:0", migrates=False)))
    assert f"{len(schema.migrations())} migrations, up to {HEAD}" in refusal.value.message
    assert "headrace migrate" in refusal.value.remedy
    with pytest.raises(typer.Exit) as left:
        migrating.migrate(url, check=True, wait=1)
    assert left.value.exit_code == 1
    said = capsys.readouterr().out
    assert f"The schema is empty; this program knows {HEAD}." in said
    assert f"due: {HEAD} " in said
    migrating.migrate(url, check=False, wait=1)
    assert revision(url) == HEAD
    migrating.migrate(url, check=True, wait=1)
    assert capsys.readouterr().out.splitlines()[-1] == "There is nothing to do."


def test_an_unreachable_database_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        migrating.migrate("postgresql://nobody:secret@127.0.0.1:1/x", check=True, wait=1)
    assert left.value.exit_code == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "cannot reach Postgres at postgresql+psycopg://nobody:***@127.0.0.1:1/x" in line


def test_the_numbers_of_migrations_ascend_and_none_needs_a_later_one() -> None:
    found = schema.migrations()
    numbers = [schema.number(one.revision) for one in found]
    assert numbers == sorted(set(numbers))
    assert all(schema.number(one.min_compatible) <= schema.number(one.revision) for one in found)
    assert all(one.words for one in found)


def test_they_are_those_that_alembic_applies() -> None:
    walked = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    assert [one.revision for one in schema.migrations()] == [one.revision for one in walked][::-1]


@pytest.mark.full
def test_asking_what_a_schema_lacks_imports_no_alembic() -> None:
    program = (
        "import sys; from headrace_services.scheduler.store import migrate, schema; "
        "schema.head(); print('alembic' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_what_a_database_lacks() -> None:
    first, last = schema.migrations()[0], schema.migrations()[-1]
    assert schema.pending(Standing(revision="", needed="")) == list(schema.migrations())
    assert schema.pending(Standing(revision=last.revision, needed=first.revision)) == []
    assert schema.pending(Standing(revision="9000", needed=last.revision)) == []
    with pytest.raises(SchemaError, match="needs programs that know 9000"):
        schema.pending(Standing(revision="9000", needed="9000"))
    assert Migration(revision="1", min_compatible="1", words="") not in schema.migrations()
