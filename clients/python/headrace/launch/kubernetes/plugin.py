"""A credential plugin of a kubeconfig: the program of a cloud provider that logs in.

What it prints works for minutes or an hour. It is run again a minute before that ends, and when the API server no
longer accepts it. Without an `expirationTimestamp` it works until then.
"""

import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace.launch.engine import EngineError

_LIMIT_S: Final = 60.0
_EARLY: Final = timedelta(minutes=1)


class Plugin:
    """A program, and what it printed last: a token, or a client certificate, which goes into `tls`."""

    def __init__(
        self,
        exec_of_user: Mapping[str, Any],
        tls: ssl.SSLContext | None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Runs it. Raises EngineError."""
        self._exec, self._tls, self._clock = exec_of_user, tls, clock
        self._command = [str(self._exec.get("command", "")), *map(str, self._exec.get("args") or ())]
        self._token = ""
        self._until: datetime | None = None
        self.renew()

    def token(self) -> str:
        """A token that works now; empty if it gave a certificate. Raises EngineError."""
        if self._until is not None and self._clock() >= self._until - _EARLY:
            self.renew()
        return self._token

    def renew(self) -> None:
        """Runs it again. Raises EngineError."""
        status = self._run()
        if self._tls is not None and status.get("clientCertificateData"):
            try:
                use_pair(
                    self._tls, str(status["clientCertificateData"]), str(status.get("clientKeyData", ""))
                )
            except (ssl.SSLError, ValueError) as error:
                raise self._failed(f"its certificate or key cannot be used: {error}") from None
        self._token = str(status.get("token") or "")
        self._until = self._end(status.get("expirationTimestamp"))

    def _end(self, text: object) -> datetime | None:
        if not text:
            return None
        try:
            found = datetime.fromisoformat(str(text))
        except ValueError:
            raise self._failed(f"its expirationTimestamp {text!r} is no time") from None
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    def _run(self) -> dict[str, Any]:
        """The status that it prints."""
        version = self._exec.get("apiVersion", "client.authentication.k8s.io/v1")
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        given = {str(one.get("name")): str(one.get("value")) for one in self._exec.get("env") or ()}
        try:
            done = subprocess.run(
                self._command,
                env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIMIT_S,
                stdin=subprocess.DEVNULL,
            )
            status = json.loads(done.stdout)["status"] if done.returncode == 0 else None
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            raise self._failed(str(error)) from None
        if not isinstance(status, dict):
            said = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise self._failed(said[0], "Log in again.")
        return status

    def _failed(self, why: str, remedy: str = "") -> EngineError:
        return EngineError(f"The credential plugin {self._command[0]!r} failed: {why}.", remedy=remedy)


def use_pair(tls: ssl.SSLContext, certificate: str, key: str) -> None:
    """Connections that `tls` opens from now on show this certificate. Raises SSLError and ValueError."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:  # ssl takes only files; mode 0600
        pair.write(f"{key}\n{certificate}\n")
        pair.flush()
        tls.load_cert_chain(pair.name)
