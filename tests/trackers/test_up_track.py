"""`headrace up --track` with a real service: the exporter follows studies, and is started again when it dies."""

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
from real_service import service

from headrace import Client
from headrace.track.webhook import signature

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
SECRET = "0123456789abcdef"
LIMIT_S = 60.0
SPEC = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1}},
    "policy": {"kind": "run_all"},
    "trials": 2,
    "steps": 1,
}


@contextmanager
def receiver() -> Iterator[tuple[str, "queue.Queue[dict[str, Any]]"]]:
    """Its URL, and the notices that it got, with their signatures checked."""
    got: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            sent = self.headers["webhook-id"], int(self.headers["webhook-timestamp"])
            assert self.headers["webhook-signature"] == signature(SECRET.encode(), *sent, body)
            self.send_response(204)
            self.end_headers()
            got.put(json.loads(body))

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/the-key", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(client: Client, name: str) -> None:
    for asked in client.create_study(name, SPEC).ask_all():
        asked.report(1, {"loss": asked.number + 1.0})
        asked.complete()


def until_completed(
    got: "queue.Queue[dict[str, Any]]", seen: dict[str, dict[str, Any]]
) -> list[tuple[str, str]]:
    """The notices up to a study's end. After a kill one may arrive again: as it was."""
    found: list[tuple[str, str]] = []
    while not found or found[-1][1] != "study.completed":
        notice = got.get(timeout=LIMIT_S)
        if notice["id"] in seen:
            assert seen[notice["id"]] == notice
            continue
        seen[notice["id"]] = notice
        found.append((notice["data"]["study"], notice["type"]))
    return found


def test_up_tracks_every_study_and_hides_the_address(tmp_path: Path) -> None:
    home = tmp_path / "home"
    seen: dict[str, dict[str, Any]] = {}
    with receiver() as (url, got):
        options = ("--track", f"webhook={url}")
        with service(home, *options, HEADRACE_WEBHOOK_SECRET=SECRET) as address, Client(address) as client:
            run(client, "first")
            assert set(until_completed(got, seen)) == {
                ("first", "study.new_best"),
                ("first", "study.completed"),
            }
            family = psutil.Process().children(recursive=True)
            commands = {process.pid: " ".join(process.cmdline()) for process in family}
            (exporter,) = [pid for pid, command in commands.items() if " track --all " in command]
            assert not any("the-key" in command for command in commands.values())
            psutil.Process(exporter).kill()
            run(client, "second")
            assert set(until_completed(got, seen)) == {
                ("second", "study.new_best"),
                ("second", "study.completed"),
            }
    assert "restarting it in" in (home / "up.log").read_text()
