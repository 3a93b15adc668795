"""Notifications: what is sent, how it is signed, and that it is sent again until it is received."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from copied_study import KilledError, info, story, updates
from scripted_study import Script

from headrace.errors import InvalidFieldError
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


def test_after_a_day_a_notice_is_dropped_and_said(receiver: Receiver, script: Script) -> None:
    said: list[str] = []
    sink = receiver.target.open(info(script), said.append, Start.RESUME)
    receiver.fail = lambda _: 500
    first = next(update for update in updates(script, batch=10_000))
    receiver.now_s = 4e9
    with pytest.raises(AwayError):
        sink.write(first)
    receiver.now_s += GIVE_UP_AFTER_S
    with pytest.raises(AwayError):
        sink.write(first)
    assert len(said) == 1
    assert "was not delivered within a day" in said[0]


def test_the_past_of_a_study_is_no_news(receiver: Receiver, script: Script) -> None:
    receiver.now_s = 4e9  # first used after the study was created
    late = Receiver(receiver.target.folder.with_name("late"))
    late.now_s = 4e9
    late.follow(script)
    assert late.got == []


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
