"""Notifications: what is sent, how it is signed, and that it is sent again until it is received."""

import base64
import contextlib
import dataclasses
import errno
import hashlib
import hmac
import json
import socket
from collections.abc import Callable, Iterable
from http.client import BadStatusLine, HTTPException, IncompleteRead
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from copied_study import KilledError, info, story, updates
from exporter_site import cut
from scripted_study import Script

from headrace import durable
from headrace.client.events import Update
from headrace.client.model import StudyInfo, StudyState
from headrace.errors import InvalidFieldError
from headrace.spec import Goal
from headrace.track.notices import best_of, notices
from headrace.track.targets import Destination, target_of
from headrace.track.tracker import AwayError, Start
from headrace.track.webhook import GIVE_UP_AFTER_S, WebhookSink, WebhookTarget, post, secret_of, signature

KEY = b"a secret that both sides know"


class Receiver:
    """The other side. `fail` may raise, or give a status other than 200, before or after it has the notice."""

    def __init__(self, folder: Path) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.fail: Callable[[str], int | None] = lambda _: None
        self.now_s = 0.0  # before the scripted study was created
        self.target = WebhookTarget(
            url="https://example.com/hooks?key=1",
            key=KEY,
            folder=folder,
            send=self,
            now_s=lambda: self.now_s,
        )

    def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        assert url == self.target.url
        if (status := self.fail("before")) is not None:
            return status
        self.got.append((headers, json.loads(body)))
        status = self.fail("after")
        return 200 if status is None else status

    @property
    def kinds(self) -> list[str]:
        return [body["type"] for _, body in self.got]

    def open(self, script: Script) -> WebhookSink:
        return self.target.open(info(script), print, Start.RESUME)

    def follow(self, script: Script) -> None:
        sink = self.open(script)
        for update in updates(script, after=sink.cursor):
            sink.write(update)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    receiver = Receiver(tmp_path / "positions")
    receiver.target.first_used_s()
    return receiver


def test_new_bests_and_the_end_are_sent_once(receiver: Receiver, script: Script) -> None:
    receiver.follow(script)
    receiver.follow(script)
    assert receiver.kinds[-1] == "study.completed"
    assert receiver.kinds.count("study.completed") == 1
    bests = [body["data"]["best"]["score"] for _, body in receiver.got if body["type"] == "study.new_best"]
    assert len(bests) > 3
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(ids)) == len(ids)
    _, last = receiver.got[-1]
    assert last["data"]["study"] == "digits"
    assert last["data"]["trials"] == 28
    assert last["data"]["best"]["params"]["optimizer"] in ("adam", "sgd")


def test_the_signature_covers_id_time_and_body(receiver: Receiver, script: Script) -> None:
    sent: list[tuple[bytes, dict[str, str]]] = []
    target = WebhookTarget(
        url="https://example.com",
        key=KEY,
        folder=receiver.target.folder,
        send=lambda _, body, headers: sent.append((body, headers)) or 204,
        now_s=lambda: 1_700_000_000.9,
    )
    sink = target.open(info(script), print, Start.RESUME)
    for update in updates(script):
        sink.write(update)
    body, headers = sent[0]
    assert headers["webhook-timestamp"] == "1700000000"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert signature(KEY, "a", 1, b"x") != signature(KEY, "a", 2, b"x")
    assert signature(KEY, "a", 1, b"x") != signature(KEY, "b", 1, b"x")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_sends_again_with_the_same_id(receiver: Receiver, script: Script, when: str) -> None:
    """What arrives twice has one id, and nothing is lost."""
    quiet = Receiver(receiver.target.folder.with_name("other"))
    quiet.target.first_used_s()
    quiet.follow(script)
    expected = [headers["webhook-id"] for headers, _ in quiet.got]
    count = 0

    def fail(moment: str) -> None:
        nonlocal count
        count += moment == when
        if moment == when and count % 3 == 0:
            raise KilledError

    receiver.fail = fail
    for _ in range(100):
        try:
            receiver.follow(script)
        except KilledError:
            continue
        break
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert list(dict.fromkeys(ids)) == expected
    assert len(ids) > len(expected) if when == "after" else len(ids) >= len(expected)
    bodies = {headers["webhook-id"]: set() for headers, _ in receiver.got}  # type: ignore[var-annotated]
    for headers, body in receiver.got:
        bodies[headers["webhook-id"]].add(json.dumps(body))
    assert all(len(one) == 1 for one in bodies.values())


@pytest.mark.parametrize("status", [301, 404, 429, 500])
def test_any_answer_but_2xx_is_tried_again(receiver: Receiver, script: Script, status: int) -> None:
    answers = [status, status]
    receiver.fail = lambda when: answers.pop() if when == "before" and answers else None
    sink = receiver.open(script)
    said: list[str] = []
    for update in updates(script):
        while True:
            try:
                sink.write(update)
            except AwayError as error:
                said.append(error.message)
                continue
            break
    assert said == [f"it answered {status}."] * 2
    assert receiver.kinds[-1] == "study.completed"


def write_all(sink: WebhookSink, todo: Iterable[Update]) -> None:
    for update in todo:
        sink.write(update)


def test_a_notice_is_dropped_when_it_is_a_day_old_and_that_is_said(
    receiver: Receiver, script: Script
) -> None:
    said: list[str] = []
    sink = receiver.target.open(info(script), said.append, Start.RESUME)
    receiver.fail = lambda _: 500
    (update,) = updates(script, batch=10_000)
    happened = update.events[-1].time
    assert happened is not None
    receiver.now_s = happened.timestamp() - GIVE_UP_AFTER_S
    for days in (0, 1.5):  # the receiver fails for a day and a half, the notice is half a day old
        receiver.now_s += days * GIVE_UP_AFTER_S
        with pytest.raises(AwayError):
            sink.write(update)
    assert said == []
    receiver.now_s += GIVE_UP_AFTER_S
    sink.write(update)
    assert len(said) == 2
    assert (
        said[0] == "study.new_best of digits was not delivered within a day, and is dropped: it answered 500."
    )


def test_after_a_drop_the_next_notices_that_are_as_old_are_tried_once(
    receiver: Receiver, script: Script
) -> None:
    """They do not wait for another day each."""
    said: list[str] = []
    receiver.fail = lambda _: 503
    receiver.now_s = 4e9
    sink = receiver.target.open(info(script), said.append, Start.RESUME)
    with pytest.raises(AwayError):
        write_all(sink, updates(script))
    receiver.now_s += GIVE_UP_AFTER_S
    sink = receiver.target.open(
        info(script), said.append, Start.RESUME
    )  # a new process, for which the day counts
    write_all(sink, updates(script, after=sink.cursor))
    assert len(said) > 3
    assert all("was not delivered within a day, and is dropped: it answered 503." in line for line in said)
    assert receiver.got == []


def test_a_full_disk_sends_nothing_twice(
    receiver: Receiver, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a notice is sent nothing may be left to store; after it this process knows."""
    sink = receiver.open(script)
    replace, writes = durable.replace, 0

    def full(file: Path, content: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes % 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(file, content)

    monkeypatch.setattr(durable, "replace", full)
    problems = set()
    for update in updates(script):
        for _ in range(10):
            try:
                sink.write(update)
            except AwayError as error:
                problems.add(error.message)
                continue
            break
    assert {problem.partition(" cannot ")[2] for problem in problems} == {
        "be written: No space left on device."
    }
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(ids)) == len(ids) > 3
    assert receiver.kinds[-1] == "study.completed"


def test_nothing_is_sent_that_cannot_be_stored_first(
    receiver: Receiver, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each restart on a full disk would send it again."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "replace", full)
        for _ in range(3):
            sink = receiver.open(script)
            with pytest.raises(AwayError, match="No space left on device"):
                write_all(sink, updates(script))
    assert receiver.got == []
    receiver.follow(script)
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(ids)) == len(ids) > 3


def test_a_notice_that_is_sent_again_is_the_same(receiver: Receiver, script: Script) -> None:
    """The id and the bytes, although the study has moved on, and its events come in other messages."""
    sent: list[tuple[str, bytes]] = []

    def send(url: str, body: bytes, headers: dict[str, str]) -> int:
        sent.append((headers["webhook-id"], body))
        return 500 if len(sent) in (2, 4) else 200

    target = dataclasses.replace(receiver.target, send=send)
    for batch in (3, 50, 11):
        sink = target.open(info(script), print, Start.RESUME)
        with contextlib.suppress(AwayError):
            for update in updates(script, after=sink.cursor, batch=batch):
                sink.write(update)
    by_id: dict[str, set[bytes]] = {}
    for notice_id, body in sent:
        by_id.setdefault(notice_id, set()).add(body)
    assert len(sent) > len(by_id) > 3
    assert {len(bodies) for bodies in by_id.values()} == {1}


@pytest.mark.parametrize(
    "error",
    [
        BadStatusLine("x"),
        IncompleteRead(b""),
        OSError("https://example.com/hooks?key=1"),
        UnicodeError("idna"),
    ],
)
def test_no_answer_of_any_kind_is_tried_again(receiver: Receiver, script: Script, error: Exception) -> None:
    def fail(_: str) -> None:
        raise error

    receiver.fail = fail
    sink = receiver.open(script)
    with pytest.raises(AwayError, match="it does not answer") as caught:
        write_all(sink, updates(script))
    assert "key=1" not in str(caught.value)
    sink.close(ended=False)  # a stop, which asks nobody
    receiver.fail = lambda _: None
    write_all(sink, updates(script, after=sink.cursor))
    assert receiver.kinds[-1] == "study.completed"


def test_an_answer_that_is_not_http_is_an_error_that_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"SSH-2.0-x\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(HTTPException):
            post(f"http://127.0.0.1:{listening.getsockname()[1]}/hook", b"{}", {})
        thread.join()


def test_when_a_webhook_was_first_used_is_stored_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So a study that is created right after the start is followed from its beginning."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    target_of(Destination("webhook", "https://h/hook"), {"HEADRACE_WEBHOOK_SECRET": KEY.decode()})
    (file,) = tmp_path.rglob("first-used")
    first = file.read_text()
    target_of(Destination("webhook", "https://h/hook"), {"HEADRACE_WEBHOOK_SECRET": KEY.decode()})
    assert file.read_text() == first
    file.write_text("")  # as an interrupted write left it
    target_of(Destination("webhook", "https://h/hook"), {"HEADRACE_WEBHOOK_SECRET": KEY.decode()})
    assert float(file.read_text()) >= float(first)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file.unlink()
    monkeypatch.setattr(durable, "replace", full)
    with pytest.raises(AwayError, match="first-used cannot be written: No space left"):
        target_of(Destination("webhook", "https://h/hook"), {"HEADRACE_WEBHOOK_SECRET": KEY.decode()})
    assert not file.exists()


def test_a_restored_study_is_followed_from_its_present_state(receiver: Receiver, script: Script) -> None:
    receiver.follow(script)
    count, restored = len(receiver.got), cut(100)
    assert receiver.open(restored).newest > info(restored).cursor
    sink = receiver.target.open(info(restored), print, Start.SET_ASIDE)
    assert sink.cursor == sink.newest == info(restored).cursor
    assert len(receiver.got) == count


def test_a_url_is_shown_without_its_key() -> None:
    target = WebhookTarget(
        url="https://user:s3cret@example.com:8443/s3cret?key=s3cret", key=KEY, folder=Path()
    )
    assert target.title == "the webhook at https://example.com:8443/…"


def test_the_past_of_a_study_is_no_news(receiver: Receiver, script: Script) -> None:
    receiver.now_s = 4e9  # first used after the study was created
    late = Receiver(receiver.target.folder.with_name("late"))
    late.now_s = 4e9
    late.follow(script)
    assert late.got == []


def test_a_best_trial_is_new_if_another_leads_or_its_score_improves(receiver: Receiver) -> None:
    leads = [(3, 0.5), (3, 0.6), (3, 0.4), (3, 0.4), (4, 0.3), (3, 0.4), (4, 0.3)]
    before, sent = None, []
    for cursor, (trial, score) in enumerate(leads, 1):
        study = SimpleNamespace(
            leader=SimpleNamespace(number=trial, score=score, score_step=9, sound=True, params={}),
            spec=SimpleNamespace(
                further_objectives=(), objective=SimpleNamespace(goal=Goal.MINIMIZE, metric="loss")
            ),
            **dict.fromkeys(("name", "uid", "project"), "s"),
            state=StudyState.ACTIVE,
            counts=SimpleNamespace(total=9, failed=0),
        )
        update = cast(
            "Update",
            SimpleNamespace(study=study, events=[SimpleNamespace(cursor=cursor, time=None, detail=None)]),
        )
        sent += [(notice.id, notice.data["best"]["score"]) for notice in notices(update, before)]
        before = best_of(cast("StudyInfo", study), before)
    assert sent == [
        ("s.best.1", 0.5),
        ("s.best.3", 0.4),
        ("s.best.5", 0.3),
        ("s.best.6", 0.4),
        ("s.best.7", 0.3),
    ]


def test_several_objectives_have_no_best(receiver: Receiver) -> None:
    script = story()
    for moment in script.moments:
        moment.study.spec.further_objectives.add(metric="accuracy", goal=1)
    receiver.follow(script)
    assert receiver.kinds == ["study.completed"]


def test_secrets() -> None:
    assert secret_of("0123456789abcdef") == b"0123456789abcdef"
    assert secret_of("whsec_" + base64.b64encode(b"0123456789abcdef").decode()) == b"0123456789abcdef"
    for bad in ("", "short", "whsec_!!!!", "whsec_c2hvcnQ="):
        with pytest.raises(InvalidFieldError) as caught:
            secret_of(bad)
        assert "openssl rand" in str(caught.value.violations[0])
        assert not bad or bad not in str(caught.value.violations[0])


def test_a_real_request_follows_no_redirect() -> None:
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(302 if self.path == "/moved" else 204)
            self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert post(f"{url}/hook", b"{}", {"content-type": "application/json"}) == 204
        assert post(f"{url}/moved", b"{}", {}) == 302
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert got == [("/hook", b"{}"), ("/moved", b"{}")]


def test_the_check_in_the_documents_accepts_what_is_sent(
    receiver: Receiver, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/track-experiments.md").read_text(encoding="utf-8")
    shown: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], shown)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    body = b'{"id": "a.1"}'
    headers = {
        "webhook-id": "a.1",
        "webhook-timestamp": "990",
        "webhook-signature": signature(KEY, "a.1", 990, body),
    }
    assert shown["is_genuine"](headers, body, KEY.decode())
    assert shown["is_genuine"](headers, body, f"whsec_{base64.b64encode(KEY).decode()}")
    assert not shown["is_genuine"]({}, body, KEY.decode())
    assert not shown["is_genuine"]({**headers, "webhook-signature": "é"}, body, KEY.decode())
    assert not shown["is_genuine"](headers, body + b" ", KEY.decode())
    assert not shown["is_genuine"]({**headers, "webhook-id": "a.2"}, body, KEY.decode())
    old = {
        "webhook-id": "a.1",
        "webhook-timestamp": "600",
        "webhook-signature": signature(KEY, "a.1", 600, body),
    }
    assert not shown["is_genuine"](old, body, KEY.decode())


@pytest.mark.parametrize("state", ["COMPLETED", "STOPPED", "FAILED"])
def test_each_end_has_its_kind_and_its_reason(receiver: Receiver, state: str) -> None:
    script = story()
    script.events[-1].study_moved.to_state = state
    script.events[-1].study_moved.detail = "the first three trials failed"
    receiver.follow(script)
    assert receiver.kinds[-1] == f"study.{state.lower()}"
    _, last = receiver.got[-1]
    assert (last["data"]["state"], last["data"]["detail"]) == (state.lower(), "the first three trials failed")
    assert [kind for kind in receiver.kinds if kind != "study.new_best"] == [f"study.{state.lower()}"]
