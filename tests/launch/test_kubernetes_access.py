"""How a launch finds and logs in to a Kubernetes API server: kubeconfig files, and a pod's own."""

import base64
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fake_api_server import api_server

from headrace.launch.engine import EngineError
from headrace.launch.kubernetes.access import access
from headrace.launch.kubernetes.api import Api
from headrace_services.identity import authority

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _nobodys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    authority.make(tmp_path / "ca", ["localhost"], now=datetime.now(UTC))
    return tmp_path / "ca"


@pytest.fixture
def server(ca: Path) -> Iterator[str]:
    """An API server over TLS that lists who calls."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = self.headers.get("Authorization", "")
            peer = self.connection.getpeercert()  # type: ignore[attr-defined]  # of TLS
            text = json.dumps(
                {"items": [{"who": said, "certificate": (peer or {}).get("serialNumber")}]}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca / "server.pem", ca / "server.key")
    context.load_verify_locations(ca / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    with HTTPServer(("localhost", 0), Handler) as found:
        found.socket = context.wrap_socket(found.socket, server_side=True)
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"https://localhost:{found.server_address[1]}"
        found.shutdown()
        thread.join()


def config(folder: Path, server: str, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    file = folder / "config"
    content = {
        "current-context": "mine",
        "contexts": [
            {"name": "mine", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "bare", "context": {"cluster": "c"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": f"{server}/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(content))
    return file


def who(found: Any) -> dict[str, Any]:
    return Api(found, sleep=lambda _: None).list("/api", "a=b")[0]


def data(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def test_a_token_and_an_authority(server: str, ca: Path, tmp_path: Path) -> None:
    for cluster in (
        {"certificate-authority": "ca/ca.pem"},
        {"certificate-authority-data": data(ca / "ca.pem")},
    ):
        found = access(config(tmp_path, server, cluster, {"token": "abc"}), None)
        assert found.namespace == "team"
        assert who(found)["who"] == "Bearer abc"
    assert access(tmp_path / "config", "bare").namespace == "default"


def test_a_file_of_a_token_is_read_for_each_call(server: str, ca: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    cluster = {"certificate-authority": str(ca / "ca.pem")}
    found = access(config(tmp_path, server, cluster, {"tokenFile": "token"}), None)
    assert who(found)["who"] == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert who(found)["who"] == "Bearer two"
    (tmp_path / "token").unlink()
    with pytest.raises(EngineError, match="cannot be read"):
        who(found)


def test_a_client_certificate(server: str, ca: Path, tmp_path: Path) -> None:
    cluster = {"certificate-authority": str(ca / "ca.pem")}
    key = ec.generate_private_key(ec.SECP256R1())
    (ca / "mine.pem").write_bytes(
        authority.load(ca).sign_worker("ann", key.public_key(), now=datetime.now(UTC))
    )
    (ca / "mine.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    user = {"client-certificate-data": data(ca / "mine.pem"), "client-key-data": data(ca / "mine.key")}
    assert who(access(config(tmp_path, server, cluster, user), None))["certificate"]
    user["client-key-data"] = data(ca / "server.key")
    with pytest.raises(EngineError, match="certificate or key in it cannot be used"):
        access(config(tmp_path, server, cluster, user), None)


PLUGIN = """
import json, os
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({**asked, "status": {"token": os.environ["GIVEN"]}}))
"""


def test_a_credential_plugin(server: str, ca: Path, tmp_path: Path) -> None:
    cluster = {"certificate-authority": str(ca / "ca.pem")}
    plugin = {"command": sys.executable, "args": ["-c", PLUGIN], "env": [{"name": "GIVEN", "value": "x"}]}
    assert who(access(config(tmp_path, server, cluster, {"exec": plugin}), None))["who"] == "Bearer x"
    for program, said in (("import sys; sys.exit('log in first')", "log in first"), ("print(1)", "failed")):
        plugin["args"] = ["-c", program]
        with pytest.raises(EngineError, match=said):
            access(config(tmp_path, server, cluster, {"exec": plugin}), None)
    plugin["command"] = "/no/such/plugin"
    with pytest.raises(EngineError, match="No such file"):
        access(config(tmp_path, server, cluster, {"exec": plugin}), None)


LOGIN = """
import json, pathlib, sys
told, lasts_s = pathlib.Path(sys.argv[1]), int(sys.argv[2])
count = int(told.read_text()) + 1 if told.exists() else 1
told.write_text(str(count))
pair = sys.argv[3:] and json.loads(pathlib.Path(sys.argv[3]).read_text())[count - 1]
from datetime import UTC, datetime, timedelta
end = datetime.now(UTC) + timedelta(seconds=lasts_s)
until = {"expirationTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}"} if lasts_s else {}
given = {"clientCertificateData": pair[0], "clientKeyData": pair[1]} if pair else {"token": f"t{count}"}
print(json.dumps({"status": {**given, **until}}))
"""


def login(*args: object) -> dict[str, Any]:
    return {"exec": {"command": sys.executable, "args": ["-c", LOGIN, *map(str, args)]}}


def test_a_plugin_runs_again_before_its_token_ends(server: str, ca: Path, tmp_path: Path) -> None:
    cluster = {"certificate-authority": str(ca / "ca.pem")}
    for lasts_s, seen in ((0, "Bearer t1"), (3600, "Bearer t1"), (30, "Bearer t3")):
        found = access(config(tmp_path, server, cluster, login(tmp_path / f"{lasts_s}", lasts_s)), None)
        who(found)
        assert who(found)["who"] == seen


def test_a_plugin_runs_again_once_when_its_token_is_not_accepted(tmp_path: Path) -> None:
    with api_server() as server:
        found = access(config(tmp_path, server.address, {}, login(tmp_path / "runs", 0)), None)
        api = Api(found, sleep=lambda _: None)
        path = "/api/v1/namespaces/team/pods"
        server.tokens = ("t1",)
        assert api.list(path, "a=b") == []
        server.tokens = ("t2",)  # the first one was revoked, or has ended
        assert api.list(path, "a=b") == []
        server.tokens = ()
        with pytest.raises(EngineError, match="does not know this user"):
            api.list(path, "a=b")
        assert (tmp_path / "runs").read_text() == "3"


def test_a_plugin_gives_another_certificate_before_the_first_one_ends(
    server: str, ca: Path, tmp_path: Path
) -> None:
    made = []
    for _ in range(3):
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = authority.load(ca).sign_worker("ann", key.public_key(), now=datetime.now(UTC))
        made.append((signed.decode(), private.decode()))
    (tmp_path / "pairs").write_text(json.dumps(made))
    user = login(tmp_path / "runs", 30, tmp_path / "pairs")
    found = access(config(tmp_path, server, {"certificate-authority": str(ca / "ca.pem")}, user), None)
    serials = [who(found)["certificate"] for _ in range(2)]
    assert all(serials)
    assert len(set(serials)) == 2


def test_a_server_that_is_not_trusted(server: str, tmp_path: Path) -> None:
    found = access(config(tmp_path, server, {}, {"token": "abc"}), None)
    with pytest.raises(EngineError, match=r"does not answer: .*CERTIFICATE_VERIFY_FAILED"):
        who(found)
    skipped = access(config(tmp_path, server, {"insecure-skip-tls-verify": True}, {"token": "abc"}), None)
    assert who(skipped)["who"] == "Bearer abc"


def test_in_a_pod_the_service_account(
    server: str, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / "token").write_text("mounted")
    (pod / "namespace").write_text("team")
    (pod / "ca.crt").write_bytes((ca / "ca.pem").read_bytes())
    with pytest.raises(EngineError, match="KUBERNETES_SERVICE_HOST"):
        access(None, None, pod=pod)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.rpartition(":")[2])
    found = access(None, None, pod=pod)
    assert (found.namespace, who(found)["who"]) == ("team", "Bearer mounted")
    chosen = config(tmp_path, server, {"certificate-authority": str(ca / "ca.pem")}, {"token": "mine"})
    monkeypatch.setenv("KUBECONFIG", f"{chosen}:/another")
    assert access(None, None, pod=pod).token == "mine"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"current-context": ""}, "no current-context"),
        ({"current-context": "other"}, "no context 'other'"),
        ({"clusters": []}, "no cluster 'c'"),
        ({"users": None}, "no user 'u'"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "has no server"),
        (
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://h", "certificate-authority": "none"}}
                ]
            },
            "certificate-authority cannot be used",
        ),
        (
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://h", "certificate-authority-data": "!"}}
                ]
            },
            "certificate-authority cannot be used",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = config(tmp_path, "https://h", {}, {})
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **change}))
    with pytest.raises(EngineError, match=said) as caught:
        access(file, None)
    assert str(file) in caught.value.message


def test_without_any_configuration(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="There is no Kubernetes configuration") as caught:
        access(None, None, pod=tmp_path)
    assert "--kubeconfig" in caught.value.remedy
    for text in ("{", "- a"):
        (tmp_path / "config").write_text(text)
        with pytest.raises(EngineError, match="cannot be used"):
            access(tmp_path / "config", None)
