"""The token that a worker is given: when it is read and used, and that its file does not outlive it."""

import asyncio
import errno
import logging
import os
import pwd
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    HeadraceError,
    InvalidFieldError,
    JoinRefusedError,
    UnreachableError,
    WorkerRevokedError,
)
from headrace.target import Target
from headrace.v1 import join_pb2
from headrace_services.identity import authority, join_tokens
from headrace_worker import credential, join_token, joining
from headrace_worker.join_token import GivenToken, given
from headrace_worker.joining import Renewal, joined
from headrace_worker.reach import Joined
from headrace_worker.run_as import OtherUser

TARGET = Target.of("127.0.0.1:1")
LIVES = timedelta(days=30)


class Signer:
    """Answers a worker's calls, like a scheduler."""

    def __init__(self, folder: Path) -> None:
        authority.make(folder, ["localhost"], now=datetime.now(UTC))
        self._held = authority.load(folder)
        self.calls: list[Any] = []
        self.used_up = True
        self.refuses: dict[str, HeadraceError] = {}
        self.lives = LIVES
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def call(self, _: str, __: object, name: str, request: Any) -> Any:
        """Sign, unless it should refuse."""
        self.calls.append(request)
        if name in self.refuses:
            raise self.refuses[name]
        key = authority.public_key_in(request.signing_request)
        made = self._held.sign_worker("w", key, now=self.clock(), lives=self.lives)
        shown = join_pb2.Credential(
            certificate=made.decode(), authorities=self._held.trusted_pem.decode(), worker_port=1
        )
        if name == "Join":
            return join_pb2.JoinResponse(credential=shown, token_used_up=self.used_up)
        return join_pb2.RenewResponse(credential=shown)

    @property
    def joins(self) -> list[str]:
        """The tokens that workers showed."""
        return [one.token for one in self.calls if isinstance(one, join_pb2.JoinRequest)]


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Signer:
    made = Signer(tmp_path / "ca")
    monkeypatch.setattr(joining, "_call", made.call)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A token in a file for the worker."""
    path = tmp_path / "token"
    path.write_text(join_tokens.new_token().text + "\n")
    path.chmod(0o600)
    return path


def start(home: Path, file: Path, **options: Any) -> Joined | None:
    """Start worker `w`, as `--join @FILE` does."""
    return asyncio.run(joined(TARGET, home, "w", given(f"@{file}"), **options))


def test_the_file_is_removed_when_its_token_is_used_up(signer: Signer, home: Path, file: Path) -> None:
    text = file.read_text().strip()
    assert start(home, file)
    assert signer.joins == [text]
    assert not file.exists()
    assert start(home, file), "the same command line starts it again"
    assert len(signer.calls) == 1


def test_the_file_stays_while_others_may_join_with_it(signer: Signer, home: Path, file: Path) -> None:
    signer.used_up = False
    assert start(home, file)
    assert start(home, file)
    assert file.exists()
    assert len(signer.calls) == 1


def test_a_worker_that_was_killed_before_it_removed_the_file_removes_it_later(
    signer: Signer, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(GivenToken, "remove", _killed)
        with pytest.raises(KeyboardInterrupt):
            start(home, file)
    assert file.exists()
    assert start(home, file)
    assert not file.exists()
    assert len(signer.joins) == 1


def _killed(_: GivenToken) -> None:
    raise KeyboardInterrupt


def test_a_join_whose_answer_was_lost_is_repeated_with_its_key(
    signer: Signer, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(credential, "store", lambda *_: _killed(GivenToken()))
        with pytest.raises(KeyboardInterrupt):
            start(home, file)
    assert file.exists()
    assert start(home, file)
    first, second = (authority.public_key_in(one.signing_request) for one in signer.calls)
    assert authority.digest_of(first) == authority.digest_of(second)
    assert not file.exists()


def test_a_file_that_cannot_be_removed_is_told_of(
    signer: Signer, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unlink = Path.unlink

    def read_only(path: Path, **options: bool) -> None:
        if path == file:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", read_only)
    assert start(home, file)
    assert f"{file} is used up; remove the file: Read-only file system" in caplog.text
    assert join_tokens.read(file.read_text()) is not None
    assert file.read_text().strip() not in caplog.text


def test_what_a_link_leads_to_is_not_removed(
    signer: Signer, home: Path, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For example in a folder of Kubernetes secrets."""
    link = tmp_path / "link"
    link.symlink_to(file)
    assert start(home, link)
    assert "remove the file itself" in caplog.text
    assert file.exists()
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), ("", "holds no token"), ("\n", "holds no token")]
)
def test_without_a_certificate_a_token_must_be_there(
    signer: Signer, home: Path, file: Path, content: str | None, says: str
) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(InvalidFieldError, match=says) as refused:
        start(home, file)
    assert "worker-token create --worker" in refused.value.violations[0].remedy
    assert not signer.calls


def test_the_variable_is_inherited_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(join_token.VARIABLE, "hr_0123456789abcdef_x")
    found = given("hr_0123456789abcdef_x")
    assert found is not None
    assert found.id == "0123456789abcdef"
    assert "hr_" not in repr(found)
    assert join_token.VARIABLE not in os.environ


def test_a_certificate_that_was_revoked_gives_way_to_another_token(
    signer: Signer, home: Path, file: Path
) -> None:
    assert start(home, file)
    signer.refuses["Renew"] = WorkerRevokedError("the certificate of worker 'w' was revoked")
    assert start(home, file)
    assert len(signer.joins) == 1, "there is no other token"
    file.write_text(join_tokens.new_token().text)
    assert start(home, file)
    assert len(signer.joins) == 2
    assert not file.exists()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("no certificate")]
)
def test_a_join_that_cannot_be_kept_leaves_the_certificate(
    signer: Signer, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first = start(home, file)
    assert first is not None
    signer.refuses["Renew"] = UnreachableError("nobody is there")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(credential, "store", refuse)
    file.write_text(join_tokens.new_token().text)
    reach = start(home, file)
    assert reach is not None
    assert reach.credential == first.credential
    assert len(signer.joins) == 2


@pytest.mark.parametrize("away", [False, True])
def test_a_certificate_that_works_or_cannot_be_tried_stays(
    signer: Signer, home: Path, file: Path, *, away: bool
) -> None:
    assert start(home, file)
    if away:
        signer.refuses["Renew"] = UnreachableError("nobody is there")
    signer.refuses["Join"] = JoinRefusedError("token: it expired")
    file.write_text(join_tokens.new_token().text)
    reach = start(home, file)
    assert reach is not None
    assert credential.load(home) == reach.credential
    assert len(signer.joins) == 1 + away, "where nobody answers, the token is tried once"
    assert file.exists(), "it was not used up"


@pytest.mark.parametrize("accepted", [False, True])
def test_where_nobody_answers_another_token_asks_where_workers_connect_now(
    signer: Signer, home: Path, file: Path, accepted: bool
) -> None:
    """A head node that listens on another port."""
    first = start(home, file)
    assert first is not None
    signer.refuses["Renew"] = UnreachableError("nobody is there")
    if not accepted:
        signer.refuses["Join"] = UnreachableError("nobody is there either")
    file.write_text(join_tokens.new_token().text)
    reach = start(home, file)
    assert reach is not None
    assert credential.load(home) == reach.credential
    assert (reach.credential != first.credential) == accepted
    assert file.exists() != accepted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_file_that_the_trials_user_may_read_is_refused(signer: Signer, home: Path) -> None:
    found = pwd.getpwnam("nobody")
    user = OtherUser(name="nobody", uid=found.pw_uid, gid=found.pw_gid, groups=(), home="/")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder, file = Path(name), Path(name, "token")
        file.write_text(join_tokens.new_token().text)
        for folder_mode, mode in ((0o755, 0o644), (0o711, 0o604)):
            folder.chmod(folder_mode)
            file.chmod(mode)
            with pytest.raises(InvalidFieldError, match="can be read by user nobody") as refused:
                start(home, file, trials=user)
            assert f"chmod 600 {file}" in refused.value.violations[0].remedy
        assert not signer.calls
        file.chmod(0o600)
        assert start(home, file, trials=user)


@pytest.mark.parametrize("apart", [timedelta(hours=-1), timedelta(0), timedelta(hours=1)])
async def test_a_worker_whose_clock_is_wrong_by_an_hour_renews_in_time(
    signer: Signer, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch, apart: timedelta
) -> None:
    """Its certificate lasts for a day. By its worker's clock it is used while it lasts, and renewed before it ends."""
    token, true = given(f"@{file}"), datetime.now(UTC)
    signer.clock = lambda: true
    signer.lives = timedelta(days=1)

    def wrong() -> datetime:
        return true + apart

    reach = await joined(TARGET, home, "w", token, clock=wrong)
    assert reach is not None
    first = reach.credential
    assert first.until - true > timedelta(hours=23)
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal true
        true += timedelta(seconds=seconds)
        if woken.is_set():
            await asyncio.Event().wait()

    monkeypatch.setattr(joining.asyncio, "sleep", sleep)
    renewing = asyncio.create_task(Renewal(reach, home, woken.set, wrong).run())
    await woken.wait()
    renewing.cancel()
    assert first.until - true > timedelta(hours=6)
    assert reach.credential.until > first.until
    true = reach.credential.until - timedelta(hours=2)
    assert await joined(TARGET, home, "w", token, clock=wrong), "it is still good by either clock"
    assert len(signer.joins) == 1
    true = reach.credential.until + timedelta(hours=2)
    with pytest.raises(InvalidFieldError, match="cannot be read"):
        await joined(TARGET, home, "w", token, clock=wrong)


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
