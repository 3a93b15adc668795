"""Where the API server is, and how to log in: a kubeconfig, or the service account of the pod that this runs in.

Of a kubeconfig this reads what clusters use: `certificate-authority(-data)`, `client-certificate(-data)`, `token`,
`tokenFile`, and `exec`, the plugins of the cloud providers.
"""

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from headrace.launch.engine import EngineError

_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An API server, and how this process calls it."""

    server: str
    """Its URL, without a slash at the end."""
    namespace: str
    """The one that the configuration names, or else `default`."""
    tls: ssl.SSLContext | None = field(repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """Read for each call, as it changes every hour."""

    def bearer(self) -> str:
        """The token of a call that is made now; empty without one. Raises EngineError."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise EngineError(
                f"The token of the service account cannot be read: {error}.", remedy=""
            ) from None


def access(kubeconfig: Path | None, context: str | None, *, pod: Path = _POD) -> Access:
    """The access that kubectl would have: `kubeconfig`, or KUBECONFIG, or ~/.kube/config, or else the pod's own.

    Raises EngineError, which names the file and the field.
    """
    named = kubeconfig or _named()
    if named is None and (pod / "token").exists():
        return _in_pod(pod)
    file = named or Path.home() / ".kube" / "config"
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except FileNotFoundError:
        raise EngineError(
            f"There is no Kubernetes configuration: {file} is not there, and this is no pod of a cluster.",
            remedy="Give one with --kubeconfig or KUBECONFIG.",
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unreadable(file, str(error).partition("\n")[0]) from None
    return _Config(file, found).access(context)


def _named() -> Path | None:
    """The first file of KUBECONFIG."""
    text = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(text).expanduser() if text else None


def _in_pod(pod: Path) -> Access:
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise EngineError(
            "KUBERNETES_SERVICE_HOST is not set, although there is a service account.",
            remedy="Run this in a pod, or give --kubeconfig.",
        )
    shown = f"[{host}]" if ":" in host else host
    try:
        namespace = (pod / "namespace").read_text("ascii").strip()
        tls = ssl.create_default_context(cafile=str(pod / "ca.crt"))
    except OSError as error:
        raise EngineError(f"The service account in {pod} cannot be used: {error}.", remedy="") from None
    return Access(server=f"https://{shown}:{port}", namespace=namespace, tls=tls, token_file=pod / "token")


class _Config:
    """A kubeconfig."""

    def __init__(self, file: Path, content: object) -> None:
        self._file = file
        self._content = content if isinstance(content, dict) else {}

    def access(self, context: str | None) -> Access:
        name = context or self._content.get("current-context") or ""
        if not name:
            raise _unreadable(self._file, "it has no current-context", "Choose one with --context.")
        chosen = self._item("contexts", name, "context")
        cluster = self._item("clusters", chosen.get("cluster"), "cluster")
        user = self._item("users", chosen["user"], "user") if chosen.get("user") else {}
        server = str(cluster.get("server", "")).rstrip("/")
        if not server.startswith(("https://", "http://")):
            raise _unreadable(self._file, f"cluster {chosen.get('cluster')!r} has no server")
        token = str(user.get("token", ""))
        if isinstance(user.get("exec"), dict):
            made = _from_plugin(user["exec"])
            token = str(made.get("token", ""))
            certificate = made.get("clientCertificateData", ""), made.get("clientKeyData", "")
        else:
            certificate = self._pem(user, "client-certificate"), self._pem(user, "client-key")
        token_file = self._path(user["tokenFile"]) if user.get("tokenFile") and not token else None
        return Access(
            server=server,
            namespace=str(chosen.get("namespace") or "default"),
            tls=self._tls(cluster, *certificate) if server.startswith("https://") else None,
            token=token,
            token_file=token_file,
        )

    def _item(self, kind: str, name: object, field_name: str) -> dict[str, Any]:
        for item in self._content.get(kind) or ():
            if isinstance(item, dict) and item.get("name") == name:
                found = item.get(field_name)
                return found if isinstance(found, dict) else {}
        raise _unreadable(self._file, f"it has no {field_name} {name!r}")

    def _tls(self, cluster: dict[str, Any], certificate: str, key: str) -> ssl.SSLContext:
        authority = self._pem(cluster, "certificate-authority")
        try:
            made = ssl.create_default_context(cadata=authority or None)
            if cluster.get("insecure-skip-tls-verify"):
                made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
            if certificate:
                with tempfile.NamedTemporaryFile(
                    "w", suffix=".pem"
                ) as pair:  # ssl takes only files; mode 0600
                    pair.write(f"{key}\n{certificate}\n")
                    pair.flush()
                    made.load_cert_chain(pair.name)
        except (ssl.SSLError, ValueError) as error:
            raise _unreadable(self._file, f"a certificate or key in it cannot be used: {error}") from None
        return made

    def _pem(self, owner: dict[str, Any], name: str) -> str:
        """The text of `NAME-data`, or of the file `NAME`; empty without both."""
        try:
            if owner.get(f"{name}-data"):
                return base64.b64decode(str(owner[f"{name}-data"]), validate=True).decode("ascii")
            return self._path(owner[name]).read_text("ascii") if owner.get(name) else ""
        except (OSError, UnicodeDecodeError, binascii.Error) as error:
            raise _unreadable(self._file, f"{name} cannot be used: {error}") from None

    def _path(self, text: object) -> Path:
        """Relative paths are relative to the file."""
        return self._file.parent / Path(str(text)).expanduser()


def _from_plugin(plugin: dict[str, Any]) -> dict[str, Any]:
    """The status that a credential plugin prints."""
    version = plugin.get("apiVersion", "client.authentication.k8s.io/v1")
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    given = {str(one.get("name")): str(one.get("value")) for one in plugin.get("env") or ()}
    command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PLUGIN_S,
            stdin=subprocess.DEVNULL,
        )
        status = json.loads(done.stdout)["status"] if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"The credential plugin {command[0]!r} failed: {error}.", remedy="") from None
    if not isinstance(status, dict):
        said = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise EngineError(f"The credential plugin {command[0]!r} failed: {said[0]}.", remedy="Log in again.")
    return status


def _unreadable(file: Path, why: str, remedy: str = "") -> EngineError:
    return EngineError(
        f"The Kubernetes configuration {file} cannot be used: {why}.",
        remedy=remedy or "`kubectl get pods` shows whether it works.",
    )
