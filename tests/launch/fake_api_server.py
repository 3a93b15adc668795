"""A Kubernetes API server, as far as a launch needs one: a real HTTP server with Jobs, pods and secrets, unique names,
versions and pages, and the usual faults. A test moves the cluster: it gives pods nodes, starts and ends them.
"""

import base64
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "of-the-service-account"
Object = dict[str, Any]


@dataclass
class Fault:
    """What goes wrong with the next requests of a method, or of any."""

    kind: str
    """An HTTP status; or `lost`: carried out, without an answer; `cut`: half an answer; `slow`; `junk`."""
    times: int = 1
    method: str = ""
    path: str = ""
    """A part of the path."""
    says: str = ""
    """The message of the status."""


@dataclass
class ApiServer:
    """The cluster's state; all objects by kind and name."""

    address: str = ""
    objects: dict[str, dict[str, Object]] = field(
        default_factory=lambda: {"jobs": {}, "pods": {}, "secrets": {}}
    )
    faults: list[Fault] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    slow_s: float = 3.0
    tokens: tuple[str, ...] = (TOKEN,)
    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 0

    # What happens in the cluster.

    @property
    def running(self) -> Counter[str]:
        """How many pods run on each seat."""
        pods = self.objects["pods"].values()
        return Counter(
            one["metadata"]["labels"]["headrace.io/seat"] for one in pods if _phase(one) == "Running"
        )

    def pod_of(self, seat: int) -> Object:
        (found,) = [
            one
            for one in self.objects["pods"].values()
            if one["metadata"]["labels"]["headrace.io/seat"] == str(seat) and _phase(one) != "Failed"
        ]
        return found

    def give_node(self, seat: int) -> None:
        """The scheduler found a node."""
        with self.lock:
            self.pod_of(seat)["spec"]["nodeName"] = "node-1"

    def start(self, seat: int) -> str | None:
        """The kubelet starts the container, if the secret that it mounts exists. Returns the token."""
        with self.lock:
            pod = self.pod_of(seat)
            if not pod["spec"].get("nodeName"):
                return None
            named = [one["secret"]["secretName"] for one in pod["spec"].get("volumes", ()) if "secret" in one]
            if any(name not in self.objects["secrets"] for name in named):
                return None
            pod["status"] = {"phase": "Running"}
            if not named:
                return ""
            return base64.b64decode(self.objects["secrets"][named[0]]["data"]["token"]).decode()

    def end(self, seat: int, *, failed: bool = False) -> None:
        """The worker exits, or its pod is evicted."""
        with self.lock:
            pod = self.pod_of(seat)
            pod["status"] = {"phase": "Failed" if failed else "Succeeded"}
            job = self.objects["jobs"][pod["metadata"]["ownerReferences"][0]["name"]]
            job["status"] = {"conditions": [{"type": "Failed" if failed else "Complete", "status": "True"}]}

    # Requests.

    def answer(
        self, method: str, path: str, query: dict[str, str], body: Object | None
    ) -> tuple[int, Object]:
        """Carries out a request."""
        with self.lock:
            self.asked[method] += 1
            parts = path.strip("/").split("/")
            place = parts.index("namespaces")
            namespace, kind, name = parts[place + 1], parts[place + 2], "/".join(parts[place + 3 :])
            assert namespace == "team"
            found = self.objects[kind]
            if method == "GET" and not name:
                return self._listed(found, query)
            if method == "POST":
                assert body is not None
                return self._created(kind, body)
            if name not in found:
                return _status(404, f'{kind} "{name}" not found')
            if method == "GET":
                return 200, found[name]
            assert body is not None
            if method == "PUT":
                if body["metadata"].get("resourceVersion") != found[name]["metadata"]["resourceVersion"]:
                    return _status(409, "the object has been modified")
                return 200, self._stored(kind, {**found[name]["metadata"], **body["metadata"]}, body)
            if body["preconditions"]["uid"] != found[name]["metadata"]["uid"]:
                return _status(409, "the UID in the precondition does not match")
            assert body["propagationPolicy"] == "Foreground"
            self._deleted(kind, name)
            return 200, {"kind": "Status", "status": "Success"}

    def _listed(self, found: dict[str, Object], query: dict[str, str]) -> tuple[int, Object]:
        key, _, value = query["labelSelector"].partition("=")
        chosen = [one for _, one in sorted(found.items()) if one["metadata"]["labels"].get(key) == value]
        first, most = int(query.get("continue", 0)), int(query["limit"])
        rest = str(first + most) if len(chosen) > first + most else ""
        return 200, {"items": chosen[first : first + most], "metadata": {"continue": rest}}

    def _created(self, kind: str, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if name in self.objects[kind]:
            return _status(409, f'{kind} "{name}" already exists')
        made = self._stored(kind, {**body["metadata"], "uid": str(uuid.uuid4())}, body)
        if kind == "jobs":
            template = body["spec"]["template"]
            owner = {"kind": "Job", "name": name, "uid": made["metadata"]["uid"]}
            pod = {
                "name": f"{name}-{uuid.uuid4().hex[:5]}",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [owner],
                "uid": str(uuid.uuid4()),
            }
            self._stored("pods", pod, {"spec": dict(template["spec"]), "status": {"phase": "Pending"}})
        return 201, made

    def _stored(self, kind: str, metadata: Object, body: Object) -> Object:
        self.version += 1
        content = {key: value for key, value in body.items() if key not in ("metadata", "stringData")}
        if "stringData" in body:
            content["data"] = {
                key: base64.b64encode(text.encode()).decode() for key, text in body["stringData"].items()
            }
        made = {**content, "metadata": {**metadata, "resourceVersion": str(self.version)}}
        self.objects[kind][metadata["name"]] = made
        return made

    def _deleted(self, kind: str, name: str) -> None:
        uid = self.objects[kind].pop(name)["metadata"]["uid"]
        for other, objects in self.objects.items():
            for one in list(objects.values()):
                if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", ())):
                    del self.objects[other][one["metadata"]["name"]]

    def next_fault(self, method: str, path: str) -> tuple[str, str]:
        """What goes wrong with this request, and its message; empty: nothing."""
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method in ("", method) and fault.path in path:
                    fault.times -= 1
                    return fault.kind, fault.says or f"fault {fault.kind}"
        return "", ""


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """One that serves until the end of the block."""
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            split = urlsplit(self.path)
            fault, says = state.next_fault(self.command, split.path)
            if self.headers.get("Authorization") not in [f"Bearer {one}" for one in state.tokens]:
                return self.send(*_status(401, "Unauthorized"))
            if fault.isdecimal():
                return self.send(*_status(int(fault), says))
            if fault == "slow":
                time.sleep(state.slow_s)  # longer than the caller waits
            query = {key: values[0] for key, values in parse_qs(split.query).items()}
            code, found = state.answer(self.command, split.path, query, body)
            if fault in ("lost", "slow"):
                self.close_connection = True
                return None
            return self.send(code, found, fault)

        do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815  # as the library calls them

        def send(self, code: int, found: Object, fault: str = "") -> None:
            text = b"<html>" if fault == "junk" else json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            if code == 302:
                self.send_header("Location", found["message"])
            if code == 429:
                self.send_header("Retry-After", "1")
            self.end_headers()
            self.wfile.write(text[: len(text) // 2] if fault == "cut" else text)
            if fault == "cut":
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _status(code: int, message: str) -> tuple[int, Object]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "message": message}
