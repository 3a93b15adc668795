"""Tokens and logins on the command line, against a real scheduler that other machines reach over TLS."""

import asyncio
import io
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import self_signed
from commands_run import Invoke

from headrace import AsyncClient, Client, logins
from headrace.errors import PermissionDeniedError, UnauthenticatedError
from headrace.target import Target

SERVING = "headrace scheduler: serving on "


@contextmanager
def scheduler(database_url: str, certificate: Path, key: Path) -> Iterator[str]:
    """A scheduler that listens on all addresses with TLS; yields its port."""
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", database_url]
    tls = ["--listen", "0.0.0.0:0", "--tls-cert", str(certificate), "--tls-key", str(key)]
    with subprocess.Popen(
        [*command, *tls], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rpartition(":")[2]
        finally:
            process.kill()
            assert process.stderr is not None
            said = process.stderr.read()
    assert "nobody can call yet" in said
    assert "Traceback" not in said


@pytest.mark.full
def test_the_first_token_a_login_and_what_follows(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    ca, key = self_signed(tmp_path / "server.pem", "localhost")
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    for name in ("HEADRACE_ADDRESS", "HEADRACE_TOKEN", "HEADRACE_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    with scheduler(database_url, ca, key) as port:
        address = f"tls://localhost:{port}"
        with Client(address, tls_ca=ca) as nobody, pytest.raises(UnauthenticatedError, match="no token"):
            nobody.studies()

        made = invoke("token", "create", "--role", "admin", "--name", "ann", "--database-url", database_url)
        assert made.code == 0, made.err
        admin = made.out.strip()
        assert admin not in made.err

        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{admin}\n"))
        done = invoke("--address", address, "login", "--tls-ca", str(ca))
        assert done.code == 0, done.err
        assert "admin of project default" in done.out
        assert admin not in done.out + done.err
        file = home / logins.FILE
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE((home / logins.CA_FILE).stat().st_mode) == 0o600
        ca.unlink()  # a copy is kept

        assert invoke("studies").code == 0
        checked = invoke("doctor", "--json")
        (identity,) = [one for one in json.loads(checked.out) if one["what"] == "identity"]
        assert identity["level"] == "ok"
        assert "admin of project default" in identity["text"]
        assert "its certificate" in checked.out, "of the login's scheduler, whose authority the login keeps"

        viewer = json.loads(
            invoke("token", "create", "--role", "viewer", "--project", "p", "--expires", "3d", "--json").out
        )
        monkeypatch.setenv("HEADRACE_TOKEN", viewer["secret"])  # overrides the login's
        who = invoke("doctor", "--json")
        (identity,) = [one for one in json.loads(who.out) if one["what"] == "identity"]
        assert identity["level"] == "warn", "it expires soon"
        assert "viewer of project p" in identity["text"]
        with Client() as client, pytest.raises(PermissionDeniedError, match="viewer of project 'p'"):
            client.study("s").stop()
        monkeypatch.delenv("HEADRACE_TOKEN")

        listed = json.loads(invoke("token", "list", "--json").out)
        assert [(one["name"], one["role"], one["state"]) for one in listed] == [
            ("", "viewer", "works"),
            ("ann", "admin", "works"),
        ]
        assert viewer["secret"] not in json.dumps(listed)
        gone = invoke("token", "revoke", viewer["id"], "--yes")
        assert gone.code == 0, gone.err
        assert [one["state"] for one in json.loads(invoke("token", "list", "--json").out)] == [
            "revoked",
            "works",
        ]
        unknown = invoke("token", "revoke", "0" * 16, "-y")
        assert unknown.code == 1
        assert "there is no token" in unknown.err

        assert asyncio.run(role_seen_by_an_async_client()) == "admin"
        file.chmod(0o644)
        (identity,) = [one for one in json.loads(invoke("doctor", "--json").out) if one["what"] == "identity"]
        assert identity["level"] == "warn"
        assert "chmod 600" in identity["remedy"]

        assert invoke("logout").code == 0
        assert not file.exists()
        assert "No `headrace up` runs" in invoke("studies").err
        monkeypatch.setattr(sys, "stdin", io.StringIO("hr_wrong\n"))
        refused = invoke("--address", address, "login", "--tls-ca", str(tmp_path / "none.pem"))
        assert refused.code == 2
        assert not file.exists()


async def role_seen_by_an_async_client() -> str:
    async with AsyncClient() as client:
        return (await client.who_am_i()).role


def test_a_login_is_for_its_own_schedulers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    for name in ("HEADRACE_ADDRESS", "HEADRACE_TOKEN", "HEADRACE_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    authority = tmp_path / "ca.pem"
    authority.write_text("pem")
    logins.keep(logins.Login(address="tls://a:7440,b:7440", token="secret-word", tls_ca=authority))
    kept = tmp_path / logins.CA_FILE
    whole = Target.of_user(None)
    assert (whole.replicas, whole.tls, whole.token, whole.tls_ca) == (
        ("a:7440", "b:7440"),
        True,
        "secret-word",
        kept,
    )
    assert Target.of_user("tls://b:7440").token == "secret-word"
    for other in ("tls://c:7440", "tls://a:7440,c:7440", "a:7440", "tls://a:7441", "127.0.0.1:7440"):
        target = Target.of_user(other)
        assert (target.token, target.tls_ca) == (None, None), other
    monkeypatch.setenv("HEADRACE_TOKEN", "another")
    assert Target.of_user(None).token == "another"
    assert Target.of_user(None, token="third").token == "third"
    assert Target.of_planner("tls://c:7441", field="planner").token == "another"
    assert Target.of_planner("127.0.0.1:7441", field="planner").token is None
    monkeypatch.delenv("HEADRACE_TOKEN")
    assert Target.of_planner("tls://a:7441", field="planner").token == "secret-word"
    assert Target.of_planner("tls://c:7441", field="planner").token is None
    assert "secret-word" not in repr(logins.kept())
    (tmp_path / "address").write_text("127.0.0.1:1\n")  # `headrace up` runs here
    assert Target.of_user(None).replicas == ("127.0.0.1:1",)
    assert Target.of_user(None).token is None


def test_a_login_that_cannot_be_read_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_ADDRESS", raising=False)
    (tmp_path / logins.FILE).write_text("{}")
    refused = invoke("studies")
    assert refused.code == 2
    assert "headrace login" in refused.err


def test_login_needs_an_address_and_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert "headrace login --address" in invoke("login").err
    assert "No token was given" in invoke("--address", "tls://a:1", "login").err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--expires=1y", "--expires: is not a time (got '1y')"),
        ("--role=owner", "viewer, editor, admin, worker"),
    ],
)
def test_what_no_token_has_is_refused_before_anything(invoke: Invoke, option: str, says: str) -> None:
    refused = invoke("token", "create", option, "--database-url", "postgresql://nobody@127.0.0.1:1/x")
    assert refused.code == 2
    assert says in refused.err
