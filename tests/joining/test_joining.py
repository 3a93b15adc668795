"""Workers that join, with a real scheduler and real daemons: renewals during a running study, and what is refused."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import psycopg
import pytest
from joined_site import JoinedSite, joined_site, one_database, until

from headrace import Client
from headrace.cli import certificates
from headrace.client import joining
from headrace.client.machines import Worker
from headrace.client.model import TrialState
from headrace.errors import HeadraceError
from headrace.protocol import SPOKEN
from headrace.target import Target
from headrace.v1 import (
    code_pb2,
    code_pb2_grpc,
    event_pb2,
    join_pb2,
    join_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from headrace_services.identity import authority
from headrace_worker import credential
from headrace_worker import joining as joining_module
from headrace_worker.joining import Renewal
from headrace_worker.reach import Joined

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]
LIVES_S = 9
TRAIN = """
import time
def train(t):
    for step in t.steps():
        time.sleep(0.05)
        t.report(loss=1.0 / step)
"""

SMALL = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "policy": {"kind": "run_all"},
    "template": {"callable": "train:train", "working_dir": "/"},
    "max_trials": 1,
    "max_steps": 1,
}


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, migrated_template: str
) -> Iterator[JoinedSite]:
    """One cluster for the file."""
    folder = tmp_path_factory.mktemp("joined")
    with (
        one_database(postgres_url, migrated_template) as database,
        joined_site(folder, database) as started,
    ):
        yield started


@pytest.fixture
def short(site: JoinedSite) -> JoinedSite:
    """A replica whose certificates last for seconds."""
    root = site.root / "short"
    root.mkdir()
    replica = JoinedSite(root, site.ca, site.database_url, site.stack)
    replica.start_scheduler("--worker-certificate-lifetime", f"{LIVES_S}s")
    return replica


def held(site: JoinedSite, name: str) -> credential.Credential:
    found = credential.load(site.root / name)
    assert found is not None
    return found


def test_a_study_runs_through_renewals_and_restarts(short: JoinedSite) -> None:
    """Every step is reported once and in order, by one attempt."""
    folder = short.root / "study"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    worker = short.start_worker("through", "--join", short.token(worker="through"))
    until(lambda: "through" in short.connected(), "the worker connects")
    first = held(short, "through")
    steps = 150
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": {"callable": "train:train", "working_dir": str(folder)},
        "max_trials": 1,
        "max_steps": steps,
        "checkpoints_kept": 1,
    }
    with short.client as client:
        study = client.create_study("through", spec)
        until(lambda: held(short, "through") != first, "the certificate is renewed")
        renewed = held(short, "through")
        assert renewed.until > first.until
        study.wait(timeout_s=60)
        (trial,) = study.trials()
        assert (trial.state, trial.attempt) == (TrialState.TERMINATED, 1)
        assert [report.step for report in study.reports()] == list(range(1, steps + 1))
    log = short.log("through")
    assert "session open" in log.rpartition("the certificate is renewed, until")[2]
    assert "Traceback" not in log
    now = held(short, "through")
    until(lambda: held(short, "through") != now, "it is renewed again, over the connection with the new one")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    now = held(short, "through")
    short.start_worker("through")  # without the token: the certificate is enough
    until(lambda: held(short, "through") != now, "it is renewed after the restart")
    until(lambda: "through" in short.connected(), "the worker connects after its restart")


async def test_a_renewal_that_fails_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First nobody is at the address, and later a scheduler that signs."""
    authority.make(tmp_path / "ca", ["localhost"], now=datetime.now(UTC))
    signer = authority.load(tmp_path / "ca")

    credential_of = credential.credential_of

    def signed(key: Any, lives: timedelta) -> credential.Credential:
        pem = signer.sign_worker("w", key.public_key(), now=datetime.now(UTC), lives=lives)
        kept = join_pb2.Credential(
            certificate=pem.decode(),
            authorities=signer.trusted_pem.decode(),
            worker_addresses=["127.0.0.1:1"],
        )
        return credential_of(key, kept)

    first = signed(credential.new_key(), timedelta(seconds=1))
    reach, renewed = Joined(Target.of("127.0.0.1:1"), first), asyncio.Event()
    renewal = Renewal(reach, tmp_path, renewed.set)
    running = asyncio.create_task(renewal.run())
    async with asyncio.timeout(60):
        while not renewal.trouble:
            await asyncio.sleep(0.02)
        assert "cannot be renewed" in renewal.trouble
        assert reach.credential is first

        async def call(*_: Any) -> Any:
            return SimpleNamespace(credential=None)

        monkeypatch.setattr(joining_module, "_call", call)
        monkeypatch.setattr(credential, "credential_of", lambda key, _: signed(key, timedelta(days=30)))
        await renewed.wait()
    assert renewal.trouble == ""
    assert credential.load(tmp_path) == reach.credential != first
    running.cancel()


def test_a_worker_that_is_shut_out(site: JoinedSite) -> None:
    site.start_worker("out", "--join", site.token())
    until(lambda: "out" in site.connected(), "the worker connects")
    shown = site.connected()["out"].certificate_end
    assert timedelta(days=29) < shown - datetime.now(UTC) < timedelta(days=30)
    with site.client as client:
        client.transport.run(joining.revoke_worker("out"))
    site.says(
        "out",
        "PERMISSION_DENIED: the certificate of worker 'out' was revoked. If it may come back, join again",
    )
    until(lambda: "out" not in site.connected(), "it is shut out")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--join", "nonsense"), "it is not a join token"),
        (("--join", "hr_0123456789abcdef_" + "a" * 43), "is not one of this cluster"),
        (("--join", "@/no/such/file"), "/no/such/file cannot be read"),
    ],
)
def test_tokens_that_let_nobody_in(site: JoinedSite, options: tuple[str, ...], says: str) -> None:
    process = site.start_worker("nobody", *options)
    assert process.wait(40) != 0
    assert says in " ".join(site.log("nobody").replace("│", " ").split())
    assert credential.load(site.root / "nobody") is None


def test_a_worker_without_a_certificate_is_told_to_join(site: JoinedSite) -> None:
    site.start_worker("stranger")
    site.says("stranger", "serves no workers without a certificate. Join with a token")


def test_a_worker_of_another_authority_is_told_so(site: JoinedSite, tmp_path: Path) -> None:
    """Once the worker trusts the scheduler and shows a foreign certificate, once the other way round."""
    authority.make(tmp_path / "other", ["localhost"], now=datetime.now(UTC))
    ours, other = authority.load(site.ca), authority.load(tmp_path / "other")
    port = int(site.workers.rpartition(":")[2])
    for name, signer, trusted, says in (
        ("foreign", other, ours, "rejects this worker's certificate"),
        ("lost", ours, other, "presents a certificate that this worker does not trust"),
    ):
        key = credential.new_key()
        made = signer.sign_worker(name, key.public_key(), now=datetime.now(UTC))
        kept = join_pb2.Credential(
            certificate=made.decode(), authorities=trusted.trusted_pem.decode(), worker_port=port
        )
        (site.root / name).mkdir()
        credential.store(site.root / name, credential.credential_of(key, kept))
        site.start_worker(name)
        site.says(name, says)
        assert "Join again" in site.log(name) or "join again" in site.log(name)


def test_a_home_of_another_name(site: JoinedSite) -> None:
    key = credential.new_key()
    made = authority.load(site.ca).sign_worker("a", key.public_key(), now=datetime.now(UTC))
    (site.root / "b").mkdir()
    credential.store(
        site.root / "b", credential.credential_of(key, join_pb2.Credential(certificate=made.decode()))
    )
    process = site.start_worker("b")
    assert process.wait(40) == 1
    assert "is not the name of the certificate" in site.log("b")


def channel(site: JoinedSite, name: str) -> grpc.Channel:
    """A channel with a worker's certificate."""
    key = credential.new_key()
    held = authority.load(site.ca)
    pem = held.sign_worker(name, key.public_key(), now=datetime.now(UTC))
    trusted = grpc.ssl_channel_credentials(held.trusted_pem, credential._pem(key).encode(), pem)
    return grpc.secure_channel(site.workers, trusted)


def test_a_worker_cannot_speak_for_another(site: JoinedSite) -> None:
    with channel(site, "mine") as line:
        hello = worker_pb2.Hello(protocol=1, worker="through", incarnation="1")
        stream = worker_pb2_grpc.WorkerServiceStub(line).Session(
            iter([worker_pb2.SessionRequest(hello=hello)]), timeout=60
        )
        with pytest.raises(grpc.RpcError) as refused:
            next(stream)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "that of worker 'mine', and it speaks for 'through'" in refused.value.details()


def test_a_worker_makes_no_tokens_and_a_user_renews_nothing(site: JoinedSite) -> None:
    with channel(site, "mine") as line, pytest.raises(grpc.RpcError) as refused:
        join_pb2_grpc.JoinServiceStub(line).CreateJoinToken(join_pb2.CreateJoinTokenRequest(), timeout=60)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    users = grpc.ssl_channel_credentials((site.ca / "ca.pem").read_bytes())
    with grpc.secure_channel(site.users, users) as line:
        with pytest.raises(grpc.RpcError) as refused:
            join_pb2_grpc.JoinServiceStub(line).Renew(join_pb2.RenewRequest(), timeout=60)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as refused:
            next(worker_pb2_grpc.WorkerServiceStub(line).Session(iter([]), timeout=60))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_worker_fetches_code_and_ships_none(site: JoinedSite) -> None:
    digest = "0" * 64
    with channel(site, "mine") as line:
        code = code_pb2_grpc.CodeServiceStub(line)
        for call in (
            lambda: code.HasCode(code_pb2.HasCodeRequest(digest=digest), timeout=60),
            lambda: code.PutCode(iter([code_pb2.PutCodeRequest(digest=digest)]), timeout=60),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as refused:
            next(code.GetCode(code_pb2.GetCodeRequest(digest=digest), timeout=60))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "worker 'mine' runs no trial of a study with the code 000000000000" in refused.value.details()
    users = grpc.ssl_channel_credentials((site.ca / "ca.pem").read_bytes())
    with grpc.secure_channel(site.users, users) as line, pytest.raises(grpc.RpcError) as refused:
        next(code_pb2_grpc.CodeServiceStub(line).GetCode(code_pb2.GetCodeRequest(digest=digest), timeout=60))
    assert "code is given to workers alone, by their certificates" in refused.value.details()


def test_a_joined_worker_runs_what_was_shipped(site: JoinedSite, tmp_path: Path) -> None:
    """It gets the code of its trial, though it may fetch no other."""
    (tmp_path / "train.py").write_text(TRAIN)
    template = {"callable": "train:train", "working_dir": str(tmp_path), "code": {"ship": True}}
    site.start_worker("ships", "--join", site.token())
    with site.client as client:
        study = client.create_study("shipped", {**SMALL, "template": template})
        study.wait(90)
        (trial,) = study.trials()
        assert (trial.state, trial.value) == (TrialState.TERMINATED, 1.0)


def test_a_revoked_certificate_opens_nothing(site: JoinedSite) -> None:
    """Nor do its reports about attempts count: they would take every running trial from its worker."""
    with psycopg.connect(site.database_url, autocommit=True) as conn, channel(site, "gone") as line:
        conn.execute(
            "INSERT INTO joined_worker (worker, token_id, key_digest, join_time, certificate_until, revoke_time)"
            " VALUES ('gone', '', '', now(), now() + interval '1 day', now() + interval '1 hour')"
        )
        with site.client as client:
            client.create_study("aimed-at", SMALL)
            client.study("aimed-at").stop()
        found = conn.execute("SELECT uid FROM study WHERE name = 'aimed-at'").fetchone()
        assert found is not None
        invented = event_pb2.LeaseRef(
            lease_id=f"{found[0]}.0.77", trial="studies/aimed-at/trials/0", attempt=77
        )
        hello = worker_pb2.Hello(
            worker="gone",
            incarnation="1",
            held=[invented],
            protocol=SPOKEN.newest,
            oldest_protocol=SPOKEN.oldest,
        )
        workers, code = worker_pb2_grpc.WorkerServiceStub(line), code_pb2_grpc.CodeServiceStub(line)
        judge = worker_pb2.JudgeFoldersRequest(folders=["a-b"])
        for call in (
            lambda: next(workers.Session(iter([worker_pb2.SessionRequest(hello=hello)]), timeout=60)),
            lambda: workers.JudgeFolders(judge, timeout=60),
            lambda: next(code.GetCode(code_pb2.GetCodeRequest(digest="0" * 64), timeout=60)),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED, refused.value
        assert conn.execute("SELECT restores FROM lineage").fetchone() == (0,)


def test_the_workers_listener_asks_for_a_certificate(site: JoinedSite) -> None:
    with (
        pytest.raises(HeadraceError),
        Client(f"tls://{site.workers}", tls_ca=site.ca / "ca.pem", connect_timeout_s=1) as client,
    ):
        client.studies()


@pytest.mark.parametrize("dies_at", ["before the answer", "before the rename"])
def test_a_worker_that_is_killed_while_it_joins(site: JoinedSite, dies_at: str) -> None:
    """The token lets one worker in, once: the second try with the same key is the same join."""
    name = "killed-" + dies_at.rpartition(" ")[2]
    token = site.token()
    patch = {
        "before the answer": "import headrace_worker.joining as j; o = j._call\n"
        "async def call(*a):\n    await o(*a); os.kill(os.getpid(), 9)\nj._call = call\n",
        "before the rename": "from headrace_worker import credential as c\n"
        "c.store = lambda *a: os.kill(os.getpid(), 9)\n",
    }[dies_at]
    program = (
        "import os\n"
        + patch
        + (
            "import typer; from headrace_worker.command import worker\n"
            "app = typer.Typer(); app.command()(worker); app()\n"
        )
    )
    options = ("--scheduler", f"tls://{site.users}", "--tls-ca", str(site.ca / "ca.pem"), "--name", name)
    killed = site.run(
        name, ("-c", program), *options, "--home", str(site.root / name), "--join", token, env={}
    )
    assert killed.wait(40) == -signal.SIGKILL
    assert (site.root / name / "joining.key").exists()
    assert credential.load(site.root / name) is None
    site.start_worker(name, "--join", token)
    until(lambda: name in site.connected(), "it joins")
    assert not (site.root / name / "joining.key").exists()
    with site.client as client:
        tokens = {one.id: one for one in client.transport.run(joining.tokens())}
    assert tokens[token.split("_")[1]].used == 1


def test_the_token_leaves_the_command_line(site: JoinedSite) -> None:
    token = site.token()
    name = f"shy-{token.split('_')[1]}"  # not connected yet, if the test runs again
    process = site.start_worker(name, "--join", token)
    until(lambda: name in site.connected(), "it joins")
    shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
    assert token not in shown
    assert "--join" in shown
    assert token not in site.log(name) + site.log("scheduler")
    secret = token.split("_", 2)[2].encode()
    assert all(secret not in log.read_bytes() for log in site.root.rglob("*.log"))


def test_the_commands(site: JoinedSite) -> None:
    """A token is made, listed and revoked. The doctor says how long certificates last, and what is wrong with one."""
    token = json.loads(command(site, "worker-token", "create", "--uses", "2", "--expires", "2h", "--json"))
    site.start_worker("told", "--join", token["token"])
    until(lambda: "told" in site.connected(), "the worker connects")
    listed = json.loads(command(site, "worker-token", "list", "--json"))
    assert [(one["uses"], one["revoked"]) for one in listed if one["id"] == token["id"]] == [(2, False)]
    assert "token" not in listed[0]
    assert "is revoked" in command(site, "worker-token", "revoke", token["token"])
    assert "revoked" in command(site, "worker-token", "list")
    assert "--expires: is not a time" in command(site, "worker-token", "create", "--expires", "soon", fails=2)
    assert "no join token" in command(site, "worker-token", "revoke", "0123456789abcdef", fails=1)
    assert "has not joined" in command(site, "worker-token", "revoke", "--worker", "never", "--yes", fails=2)
    found = {
        (one["what"], one["level"]): one["text"]
        for one in json.loads(command(site, "doctor", "--json", fails=None))
    }
    assert "its certificate expires in 36" in found["scheduler", "ok"]
    assert "of the workers: the first expires in" in found["certificates", "ok"]


def test_a_certificate_that_has_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    workers = [
        Worker(
            name=name,
            connected=connected,
            slots=(),
            labels={},
            last_seen=now,
            version="",
            certificate_end=end,
        )
        for name, connected, end in (
            ("a", False, now - timedelta(days=1)),
            ("b", True, now + timedelta(days=9, minutes=1)),
            ("c", True, now + timedelta(hours=3, seconds=29)),
            ("d", True, None),
        )
    ]
    assert [worker.name for worker in certificates.ended(workers)] == ["a"]
    first = certificates.first_end(workers)
    assert first is not None
    assert certificates.in_words(first) == "expires in 3 h 00 min"
    assert certificates.in_words(now) == "has expired"


def command(site: JoinedSite, *words: str, fails: int | None = 0) -> str:
    """Runs a command; returns all of its output."""
    environ = {
        **os.environ,
        "HEADRACE_ADDRESS": f"tls://{site.users}",
        "HEADRACE_TLS_CA": str(site.ca / "ca.pem"),
    }
    program = [sys.executable, "-m", "headrace.cli", *words]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=90, check=False)
    assert fails is None or done.returncode == fails, done.stdout + done.stderr
    return done.stdout if fails in (0, None) else done.stdout + done.stderr
