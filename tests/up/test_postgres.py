"""The embedded Postgres starts from nothing, survives kills, and keeps its data."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import psutil
import psycopg
import pytest
import sqlalchemy

from headrace.errors import HeadraceError
from headrace_services.up import pgwheel
from headrace_services.up.child import ChildFailedError
from headrace_services.up.postgres import SOCKET_PATH_LIMIT, EmbeddedPostgres, clear_the_way
from headrace_services.up.supervisor import Supervisor

STRANGER = 4321
"""A user without a name."""


@pytest.fixture
def embedded(tmp_path: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(data_dir=tmp_path / "postgres", log_path=tmp_path / "logs" / "postgres.log")


async def query(postgres: EmbeddedPostgres, statement: str) -> list[tuple]:
    url = sqlalchemy.make_url(postgres.url)
    connection = await psycopg.AsyncConnection.connect(
        host=url.query["host"],
        port=url.query["port"],
        user=url.username,
        dbname=url.database,
        autocommit=True,
    )
    async with connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


@pytest.mark.full
async def test_it_keeps_its_data_over_a_kill_and_a_restart_of_everything(embedded, running) -> None:
    async with running([embedded.child()]) as state:
        await query(embedded, "CREATE TABLE kept (n int)")
        await query(embedded, "INSERT INTO kept VALUES (7)")
        os.kill(state.pid("postgres"), signal.SIGKILL)
        await state.until(lambda: state.said("postgres")[-1].endswith("again"), "Postgres is back", 60)
        assert await query(embedded, "SELECT n FROM kept") == [(7,)]
    assert state.said("postgres")[-1] == "stopped"
    assert not (embedded.data_dir / "postmaster.pid").exists()
    async with running([embedded.child()]):
        assert await query(embedded, "SELECT n FROM kept") == [(7,)]


async def test_it_listens_on_a_socket_that_others_cannot_reach(embedded, running) -> None:
    async with running([embedded.child()]):
        assert await query(embedded, "SHOW listen_addresses") == [("",)]
    assert embedded.data_dir.stat().st_mode & 0o077 == 0


@pytest.mark.full
async def test_the_user_s_environment_does_not_matter(embedded, running, monkeypatch) -> None:
    monkeypatch.setenv("PGPORT", "1234")
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    async with running([embedded.child()]):
        assert await query(embedded, "SHOW lc_messages") == [("C",)]
        assert await query(embedded, "SHOW server_encoding") == [("UTF8",)]


@pytest.mark.full
async def test_a_long_path_gets_a_short_socket(tmp_path, running) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 4)
    postgres = EmbeddedPostgres(data_dir=deep / "postgres", log_path=deep / "postgres.log")
    assert len(str(postgres.socket_dir / ".s.PGSQL.5432")) <= SOCKET_PATH_LIMIT
    async with running([postgres.child()]):
        assert await query(postgres, "SELECT 1") == [(1,)]
        assert postgres.socket_dir.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
@pytest.mark.parametrize("kind", ["link", "folder", "file"])
def test_a_socket_folder_of_somebody_else_is_refused(tmp_path, monkeypatch, kind: str) -> None:
    tmp_path.chmod(0o1777)
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 4)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    postgres = EmbeddedPostgres(data_dir=deep / "postgres", log_path=deep / "postgres.log")
    match kind:
        case "link":
            (tmp_path / "ours").mkdir(mode=0o700)
            postgres.socket_dir.symlink_to(tmp_path / "ours")
        case "folder":
            postgres.socket_dir.mkdir(mode=0o700)
        case _:
            postgres.socket_dir.touch(mode=0o600)
    os.chown(postgres.socket_dir, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(HeadraceError, match="belongs to another user"):
        postgres.prepare()


async def test_a_pid_file_that_names_another_process_does_not_stop_it(embedded, running) -> None:
    async with running([embedded.child()]):
        pid_file = (embedded.data_dir / "postmaster.pid").read_text()
    rest = pid_file.partition("\n")[2]
    (embedded.data_dir / "postmaster.pid").write_text(f"{os.getpid()}\n{rest}")
    async with running([embedded.child()]):
        assert await query(embedded, "SELECT 1") == [(1,)]


async def test_a_server_that_an_earlier_run_left_is_replaced(embedded, running) -> None:
    async with running([embedded.child()]) as state:
        left = psutil.Process(state.pid("postgres"))
        (other := embedded.data_dir.with_name("other")).symlink_to(embedded.data_dir)
        clear_the_way(other)  # the folder counts, not its path, which may be the same in another container
        assert not left.is_running()
        await state.until(lambda: state.said("postgres")[-1].endswith("again"), "Postgres is back", 60)


@pytest.mark.full
async def test_an_initialisation_that_was_cut_short_is_begun_again(embedded, running) -> None:
    unfinished = embedded.data_dir.with_name("postgres.unfinished")
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    async with running([embedded.child()]):
        assert await query(embedded, "SELECT 1") == [(1,)]
    assert not unfinished.exists()


async def test_a_folder_of_another_version_is_refused_with_a_remedy(embedded) -> None:
    embedded.data_dir.mkdir()
    (embedded.data_dir / "PG_VERSION").write_text("12\n")
    supervisor = Supervisor([embedded.child()], announce=lambda _: None)
    with pytest.raises(ChildFailedError, match="was written by Postgres 12") as caught:
        await supervisor.run(asyncio.Event(), lambda: pytest.fail("not ready"))
    assert "--home" in caught.value.remedy


def test_the_servers_user_is_made_once_however_many_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    users: set[str] = set()
    made: list[str] = []

    def ensure(name: str) -> None:  # like `useradd`: it checks first, and writes later
        if name not in users:
            sleep(0.05)
            made.append(name)
            users.add(name)

    monkeypatch.setattr(pgwheel, "ensure_user_exists", ensure)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(pgwheel.make_user, ["pgserver"] * 4))
    assert made == ["pgserver"]


def test_root_without_a_path_to_useradd_has_the_servers_user_made(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(pgwheel, "ensure_user_exists", lambda _: paths.append(os.environ["PATH"]))
    pgwheel.make_user("pgserver")
    assert paths == ["/usr/bin:/usr/sbin:/sbin"]
    assert os.environ["PATH"] == "/usr/bin"

    def nowhere(_: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", "useradd")

    monkeypatch.setattr(pgwheel, "ensure_user_exists", nowhere)
    with pytest.raises(HeadraceError, match="there is no useradd") as caught:
        pgwheel.make_user("pgserver")
    assert caught.value.remedy == "Make a system user pgserver, or run as another user than root."
