"""Where the API server is, and how to log in: a kubeconfig, or the service account of the pod that this runs in.

Of a kubeconfig this reads what clusters use: `certificate-authority(-data)`, `client-certificate(-data)`, `token`,
`tokenFile`, and `exec`, the plugins of the cloud providers.
"""

import base64
import binascii
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from headrace.launch.engine import EngineError
from headrace.launch.kubernetes.plugin import Plugin, use_pair

_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
    plugin: Plugin | None = field(default=None, repr=False)
    """What gives a token or a certificate instead."""

    def renew(self) -> bool:
        """Logs in again, as a call was not accepted; False if that is not possible. Raises EngineError."""
        if self.plugin is None:
            return False
        self.plugin.renew()
        return True

    def bearer(self) -> str:
        """The token of a call that is made now; empty without one. Raises EngineError."""
        if self.plugin is not None:
            return self.plugin.token()
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
        plugin = user["exec"] if isinstance(user.get("exec"), dict) else None
        tls = self._tls(cluster, {} if plugin else user) if server.startswith("https://") else None
        token = str(user.get("token", ""))
        return Access(
            server=server,
            namespace=str(chosen.get("namespace") or "default"),
            tls=tls,
            token=token,
            token_file=self._path(user["tokenFile"]) if user.get("tokenFile") and not token else None,
            plugin=None if plugin is None else Plugin(plugin, tls),
        )

    def _item(self, kind: str, name: object, field_name: str) -> dict[str, Any]:
        for item in self._content.get(kind) or ():
            if isinstance(item, dict) and item.get("name") == name:
                found = item.get(field_name)
                return found if isinstance(found, dict) else {}
        raise _unreadable(self._file, f"it has no {field_name} {name!r}")

    def _tls(self, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
        certificate, key = self._pem(user, "client-certificate"), self._pem(user, "client-key")
        authority = self._pem(cluster, "certificate-authority")
        try:
            made = ssl.create_default_context(cadata=authority or None)
            if cluster.get("insecure-skip-tls-verify"):
                made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
            if certificate:
                use_pair(made, certificate, key)
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


def _unreadable(file: Path, why: str, remedy: str = "") -> EngineError:
    return EngineError(
        f"The Kubernetes configuration {file} cannot be used: {why}.",
        remedy=remedy or "`kubectl get pods` shows whether it works.",
    )
