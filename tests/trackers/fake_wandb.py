"""A double of W&B's server, for `wandb sync`: it takes what W&B's own reader finds in the files.

It knows the three calls that `sync` makes, and stores each line of a run's history at the offset that it was sent for.
"""

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from copied_study import Points

from headrace.track.names import original

HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


class Received:
    """What was uploaded."""

    def __init__(self) -> None:
        self.address = ""
        self.runs: dict[str, dict[str, Any]] = {}
        """The last `upsertBucket` of each run: its group, its name, its configuration."""
        self.lines: dict[str, dict[int, dict[str, Any]]] = {}
        """The lines of each run's history, by offset."""
        self.summaries: dict[str, dict[str, Any]] = {}
        """The last summary of each run."""
        self.overwritten = 0
        self.ended: dict[str, int] = {}

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a query."""
        variables = request.get("variables") or {}
        if "upsertBucket" in request["query"]:
            run = variables.get("name") or ""
            known = run in self.runs
            self.runs.setdefault(run, {}).update({k: v for k, v in variables.items() if v is not None})
            project = {"id": "p", "name": variables.get("project") or "headrace"}
            project["entity"] = {"id": "e", "name": "team"}
            bucket = {"id": run, "name": run, "displayName": variables.get("displayName"), "project": project}
            bucket |= {"config": "{}", "historyLineCount": len(self.lines.get(run, {}))}
            return {"upsertBucket": {"bucket": bucket, "inserted": not known}}
        if "createRunFiles" in request["query"]:
            files = [
                {"name": name, "uploadUrl": f"{self.address}/upload/{name}"} for name in variables["files"]
            ]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, run: str, request: dict[str, Any]) -> None:
        """Lines of a run's files."""
        files = request.get("files") or {}
        if SUMMARY in files:
            self.summaries[run] = json.loads(files[SUMMARY]["content"][-1])
        part = files.get(HISTORY, {"offset": 0, "content": []})
        lines = self.lines.setdefault(run, {})
        for offset, line in enumerate(part["content"], part["offset"]):
            self.overwritten += offset in lines
            lines[offset] = json.loads(line)
        if "exitcode" in request:
            self.ended[run] = request["exitcode"]

    def points(self) -> Points:
        """Every point, by trial and metric."""
        found: Points = {}
        for run, lines in self.lines.items():
            for _, row in sorted(lines.items()):
                for name, value in row.items():
                    if name != "headrace/step" and (not name.startswith("_") or original(name) != name):
                        key = int(run.rpartition("-")[2]), original(name)
                        number = math.nan if value == "NaN" else float(value)
                        found.setdefault(key, []).append((row["headrace/step"], number))
        return found


@contextmanager
def wandb_server() -> Iterator[Received]:
    """Serves until the end."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/graphql":
                self._answer({"data": received.graphql(json.loads(body))})
            elif self.path.endswith("/file_stream"):
                received.stream(self.path.split("/")[4], json.loads(body))
                self._answer({"limits": {}})
            else:
                self._answer({})

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self._answer({})

        def do_GET(self) -> None:
            self._answer({})

        def _answer(self, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    received.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
