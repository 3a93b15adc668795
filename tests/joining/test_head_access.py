"""The first tokens of a head node, made in a real database."""

import asyncio
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headrace_services.identity.tokens import read
from headrace_services.scheduler.head_access import JOIN, TOKEN, ensure


@pytest.fixture
def made(database_url: str, tmp_path: Path) -> Callable[[], tuple[str, str]]:
    """Makes sure of the tokens; returns both."""

    def make() -> tuple[str, str]:
        asyncio.run(ensure(database_url, tmp_path, "local"))
        return (tmp_path / TOKEN).read_text(), (tmp_path / JOIN).read_text()

    return make


def rows(database_url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url) as conn:
        return conn.execute(query).fetchall()  # type: ignore[arg-type]  # a literal of this file


def test_the_token_stays_and_the_join_token_is_a_new_one(
    made: Callable[[], tuple[str, str]], database_url: str, tmp_path: Path
) -> None:
    token, join = made()
    again, other = made()
    assert token == again
    assert join != other
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (TOKEN, JOIN)} == {0o600}
    assert rows(database_url, "SELECT name, role, project FROM token") == [("head", "admin", "default")]
    assert rows(database_url, "SELECT DISTINCT worker, uses FROM join_token") == [("local", 1)]
    (left,) = rows(database_url, "SELECT max(extract(epoch FROM expire_time - now())) FROM join_token")
    assert 0 < float(left[0]) <= 900  # type: ignore[arg-type]  # a number


def test_without_a_worker_there_is_no_join_token(database_url: str, tmp_path: Path) -> None:
    asyncio.run(ensure(database_url, tmp_path, None))
    assert [path.name for path in tmp_path.iterdir()] == [TOKEN]
    assert rows(database_url, "SELECT count(*) FROM join_token") == [(0,)]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE token SET revoke_time = now()",
        "UPDATE token SET expire_time = now() + interval '6 days'",
        "UPDATE token SET digest = sha256('another')",
        "DELETE FROM token",
    ],
)
def test_a_token_that_does_not_work_is_replaced(
    made: Callable[[], tuple[str, str]], database_url: str, change: str
) -> None:
    token, _ = made()
    with psycopg.connect(database_url, autocommit=True) as conn:
        assert conn.execute(change).rowcount == 1  # type: ignore[arg-type]  # a literal of this file
    new, _ = made()
    assert new != token
    assert made()[0] == new


@pytest.mark.parametrize("damage", [b"", b"junk", b"\xff\xfe"])
def test_a_damaged_file_is_replaced(
    made: Callable[[], tuple[str, str]], tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / TOKEN).write_bytes(damage)
    assert read(made()[0].strip()) is not None


def test_as_a_program_it_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    done = subprocess.run(
        [sys.executable, "-m", "headrace_services.scheduler.head_access", str(tmp_path), "local"],
        env={"HEADRACE_DATABASE_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:1" in done.stderr
