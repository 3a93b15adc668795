"""The work of docker-compose.yml's init containers, run here: files by the shell, roles and tokens in a real
Postgres."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from cryptography import x509
from sqlalchemy import make_url

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "services"))
import compose_join
from headrace.errors import JoinRefusedError
from headrace_services.identity import join_tokens
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.migrate import migrate
from headrace_services.up import pgwheel

ROOT = Path(__file__).resolve().parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
FOLDERS = [volume.partition(":")[0] for volume in SERVICES["init-secrets"]["volumes"]]
SCHEMAS = "SELECT count(*), count(*) FILTER (WHERE tableowner = 'scheduler') FROM pg_tables WHERE schemaname = 'public'"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder in which containers have the volumes."""
    path = tmp_path / "run"
    for name in FOLDERS:
        (path / name).mkdir(parents=True)
    return path


def init(run: Path, step: str, **variables: str) -> None:
    """A step of `compose_init`."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["sh", ROOT / "services/compose_init.sh", step],
        env={**os.environ, "PATH": path, "HEADRACE_RUN": str(run), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def contents(run: Path) -> dict[str, bytes]:
    """All files, by their paths."""
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def hosts(pem: Path) -> set[str]:
    """The hosts that a server's certificate names."""
    names = x509.load_pem_x509_certificate(pem.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    found = names.value.get_values_for_type(x509.DNSName)
    return {*found, *map(str, names.value.get_values_for_type(x509.IPAddress))}


@pytest.mark.full
def test_each_server_has_a_key_of_its_own_and_a_second_run_changes_nothing(run: Path) -> None:
    init(run, "secrets", HEADRACE_HOSTS="head.example.org")
    made = contents(run)
    local = {"localhost", "127.0.0.1", "head.example.org"}
    assert hosts(run / "authority/ca/server.pem") == {"scheduler-1", "scheduler-2", *local}
    assert hosts(run / "serving/server.pem") == {"planner", *local}
    assert hosts(run / "watching/server.pem") == {"grafana", *local}
    keys = {made[name] for name in made if name.endswith("server.key")}
    assert len(keys) == 3
    passwords = {made[f"{name}/password"] for name in ("secrets", "database", "watching")}
    assert len({*passwords, made["scraping/token"]}) == 4
    assert made["database/pgpass"] == b"*:*:*:scheduler:" + made["database/password"] + b"\n"
    others = {
        str(path.relative_to(run))
        for path in run.rglob("*")
        if path.is_file() and path.stat().st_mode & 0o077
    }
    assert others == {"scraping/token"}
    assert stat.S_IMODE((run / "scraping/token").stat().st_mode) == 0o444
    init(run, "secrets", HEADRACE_HOSTS="head.example.org")
    assert contents(run) == made


@pytest.mark.full
def test_another_host_or_a_certificate_of_before_makes_new_ones_of_the_same_authority(run: Path) -> None:
    """Earlier the planner and Grafana had a copy of the schedulers' key."""
    init(run, "secrets")
    made = contents(run)
    for name in ("server.pem", "server.key"):
        shutil.copy(run / "authority/ca" / name, run / "serving" / name)
    (run / "authority/hosts").write_text("scheduler-1 scheduler-2 planner localhost 127.0.0.1 \n")
    (run / "authority/hosts-serving").unlink()
    init(run, "secrets")
    now = contents(run)
    assert now["authority/ca/ca.key"] == made["authority/ca/ca.key"]
    old = made["authority/ca/server.key"]
    assert old not in now.values(), "nobody shows the key that others had"
    init(run, "secrets", HEADRACE_HOSTS="10.0.0.5")
    assert all(
        "10.0.0.5" in hosts(run / name / "server.pem") for name in ("authority/ca", "serving", "watching")
    )


def psql(url: str, run: Path) -> None:
    """Run the commands of the container `init-database`, as the superuser."""
    (run / "database/password").write_text("s3cr3t")
    script = ROOT / "services/compose_database.sql"
    done = subprocess.run(
        [pgwheel.PROGRAMS / "psql", "--no-psqlrc", "--quiet", f"--file={script}", url],
        env={**os.environ, "HEADRACE_DATABASE_PASSWORD_FILE": str(run / "database/password")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def fresh(postgres_url: str) -> Iterator[str]:
    """An empty database that belongs to the superuser."""
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS composed WITH (FORCE)")
        conn.execute("CREATE DATABASE composed")
    url = make_url(postgres_url).set(database="composed")
    yield url.render_as_string(hide_password=False)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE composed WITH (FORCE)")
        conn.execute("DROP ROLE IF EXISTS scheduler")


def as_scheduler(url: str) -> str:
    """The URL of the schedulers' role."""
    return make_url(url).set(username="scheduler", password="s3cr3t").render_as_string(hide_password=False)


def migrated(url: str) -> None:
    """Bring the schema up to date."""

    async def bring() -> None:
        engine = open_engine(url, pool_size=2)
        await migrate(engine)
        await engine.dispose()

    asyncio.run(bring())


def test_the_schedulers_role_owns_its_database_and_has_no_other_right(fresh: str, run: Path) -> None:
    psql(fresh, run)
    psql(fresh, run)
    migrated(as_scheduler(fresh))
    with psycopg.connect(as_scheduler(fresh), autocommit=True) as conn:
        rights = conn.execute(
            "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls FROM pg_roles"
            " WHERE rolname = current_user"
        ).fetchone()
        assert rights == (False,) * 5
        tables, owned = conn.execute(SCHEMAS).fetchone() or (0, 0)
        assert tables == owned > 20
        assert conn.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        for refused in (
            "COPY study TO PROGRAM 'id'",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT rolpassword FROM pg_authid",
            "CREATE ROLE other SUPERUSER",
            "CREATE DATABASE other",
            "ALTER SYSTEM SET log_statement = 'all'",
            "CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'libc.so.6', 'getpid'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(refused)
    elsewhere = make_url(as_scheduler(fresh)).set(database="postgres").render_as_string(hide_password=False)
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(elsewhere)


def test_an_installation_whose_schedulers_were_the_superuser_is_handed_over(fresh: str, run: Path) -> None:
    migrated(fresh)
    with psycopg.connect(fresh, autocommit=True) as conn:
        assert conn.execute("SELECT current_setting('is_superuser')").fetchone() == ("on",)
        conn.execute("UPDATE lineage SET restores = 7")
    psql(fresh, run)
    with psycopg.connect(as_scheduler(fresh), autocommit=True) as conn:
        assert conn.execute("SELECT restores FROM lineage").fetchone() == (7,)
        tables, owned = conn.execute(SCHEMAS).fetchone() or (0, 0)
        assert tables == owned > 20
        # What a later migration may do: another column, another function body, another index.
        conn.execute("ALTER TABLE study ADD COLUMN later TEXT")
        conn.execute("CREATE INDEX later ON study (later)")
        owners = "SELECT DISTINCT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        assert conn.execute(owners).fetchall() == [("scheduler",)]
    migrated(as_scheduler(fresh))


def tokens(run: Path) -> dict[str, str]:
    """The join tokens, by the names of their files."""
    return {path.name: path.read_text() for path in (run / "joining").iterdir() if path.name != "ca.pem"}


def test_each_worker_has_a_token_for_its_name_until_it_has_joined(database_url: str, run: Path) -> None:
    names = ["compose", "compose-2", "compose-3"]
    asyncio.run(compose_join.make(database_url, run / "joining", names))
    first = tokens(run)
    assert set(first) == set(names)
    assert all(stat.S_IMODE((run / "joining" / name).stat().st_mode) == 0o600 for name in first)
    with psycopg.connect(database_url) as conn:
        rows = conn.execute(
            "SELECT worker, uses, expire_time - create_time < '16 min' FROM join_token"
        ).fetchall()
    assert sorted(rows) == [(name, 1, True) for name in sorted(first)]

    async def join(name: str, text: str) -> None:
        token = join_tokens.read(text)
        assert token is not None
        engine = open_engine(database_url, pool_size=1)
        try:
            async with transaction(engine) as conn:
                now = await joins.database_time(conn)
                lasts = now.replace(year=now.year + 1)
                await joins.join(conn, token, worker=name, key_digest=name.encode(), now=now, until=lasts)
        finally:
            await engine.dispose()

    with pytest.raises(JoinRefusedError, match="for worker 'compose-2'"):
        asyncio.run(join("compose", first["compose-2"]))
    asyncio.run(join("compose", first["compose"]))
    asyncio.run(compose_join.make(database_url, run / "joining", names))
    assert set(tokens(run)) == {"compose-2", "compose-3"}, "a worker that has joined needs none"


def test_the_token_that_all_workers_shared_is_revoked(database_url: str, run: Path) -> None:
    shared = join_tokens.new_token()

    async def make() -> None:
        engine = open_engine(database_url, pool_size=1)
        async with transaction(engine) as conn:
            await joins.create(conn, shared, worker="", uses=1000, lifetime=joins.KEPT_FOR)
        await engine.dispose()

    asyncio.run(make())
    (run / "joining/token").write_text(shared.text + "\n")
    asyncio.run(compose_join.make(database_url, run / "joining", ["compose"]))
    assert set(tokens(run)) == {"compose"}
    with psycopg.connect(database_url) as conn:
        found = conn.execute(
            "SELECT revoke_time IS NOT NULL FROM join_token WHERE id = %s", (shared.id,)
        ).fetchone()
    assert found == (True,)


@pytest.mark.full
def test_the_first_token_expires_and_is_kept(database_url: str, run: Path) -> None:
    init(run, "token", HEADRACE_DATABASE_URL=database_url, HEADRACE_WORKERS="3")
    assert set(tokens(run)) == {"compose", "compose-2", "compose-3"}
    with psycopg.connect(database_url) as conn:
        query = "SELECT role, expire_time - now() BETWEEN '29 days' AND '30 days' FROM token"
        assert conn.execute(query).fetchall() == [("admin", True)]
    first = (run / "access/token").read_text()
    assert first.startswith("hr_")
    init(run, "token", HEADRACE_DATABASE_URL=database_url, HEADRACE_WORKERS="1")
    assert (run / "access/token").read_text() == first
    assert stat.S_IMODE((run / "access/token").stat().st_mode) == 0o600


WORKER = """#!/bin/sh
# In the place of `headrace`: says how it was started, and stays while a file is there.
echo "$@" >"$HEADRACE_HOME/said-$$.new"
mv "$HEADRACE_HOME/said-$$.new" "$HEADRACE_HOME/said-$$"
while [ -e "$HEADRACE_HOME/stays" ]; do sleep 0.05 9>&-; done
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="as in its container it is root")
def test_containers_of_the_worker_take_names_that_no_other_one_has(tmp_path: Path) -> None:
    home, programs = tmp_path / "home", tmp_path / "bin"
    (home / "workers/compose").mkdir(parents=True)
    (home / "workers/compose/credential.json").write_text("")
    for path in (home, *home.rglob("*")):
        os.chown(path, 10001, 10001)  # a volume from before
    programs.mkdir()
    (programs / "headrace").write_text(WORKER)
    (programs / "headrace").chmod(0o755)
    (home / "stays").touch()
    environ = {
        **os.environ,
        "HEADRACE_HOME": str(home),
        "HEADRACE_RUN": "/there",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }

    def start() -> tuple["subprocess.Popen[bytes]", list[str]]:
        process = subprocess.Popen(["sh", ROOT / "services/compose_worker.sh", "--label", "a=b"], env=environ)
        said = home / f"said-{process.pid}"
        while not said.exists():
            assert process.poll() is None
        return process, said.read_text().split()

    started = [start() for _ in range(3)]
    try:
        names = [words[words.index("--name") + 1] for _, words in started]
        assert names == ["compose", "compose-2", "compose-3"]
        for name, (_, words) in zip(names, started, strict=True):
            assert words[words.index("--home") + 1] == str(home / "workers" / name)
            assert words[words.index("--join") + 1] == f"@/there/joining/{name}"
            assert words[words.index("--run-as") + 1] == "trials"
            assert words[-2:] == ["--label", "a=b"]
        started[1][0].kill()
        started[1][0].wait()
        started.append(start())
        assert "compose-2" in started[-1][1], "the name of the one that ended"
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
    assert {path.stat().st_uid for path in home.rglob("*")} == {0}
    assert [stat.S_IMODE((home / name).stat().st_mode) for name in (".", "workers")] == [0o711, 0o711]
