"""Where schedulers are: the addresses that a user writes, and the TLS settings for them.

`HOST:PORT`, several replicas as `a:7440,b:7440`, IPv6 as `[::1]:7440`, with `tls://` before the first if they
require TLS. A single address may also be any other gRPC target, such as `unix:/run/headrace.sock`.

Each replica has its own channel. gRPC then resolves each host name again when it connects, and TLS checks each
certificate against the name that the user wrote. (A list in gRPC's own format holds only literal addresses, and
has one name for all of them.)
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import grpc

from headrace import logins
from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.home import address as default_address
from headrace.home import address_in, given_address, home_dir, is_on_this_machine
from headrace.pinned import authority_file
from headrace.userfile import MIB, UserFile

PEM: Final = UserFile(largest_bytes=MIB, remedy="HEADRACE_TLS_CA and --tls-… name files in PEM.")
TLS: Final = "tls://"
_REPLICA: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):([0-9]{1,5})")
_SCHEME: Final = re.compile(r"(unix|unix-abstract|dns|ipv4|ipv6|xds):.+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The servers to which channels are opened, and how."""

    replicas: tuple[str, ...]
    """Each in gRPC's format, in the order in which they are tried."""
    tls: bool = False
    tls_ca: Path | None = None
    """The certificate authority to trust; None: the system's."""
    token: str | None = field(default=None, repr=False)
    """The token that each call carries as `authorization: Bearer TOKEN`."""
    project: str | None = None
    """The project that each call carries as `headrace-project`; None: that of the token, or else `default`."""
    home: Path | None = None
    """The home whose `address` file named the replicas; None: they were given, or are the default."""

    @classmethod
    def of(
        cls,
        address: str | None,
        *,
        field: str = "address",
        tls_ca: Path | None = None,
        token: str | None = None,
        login: str | None = None,
        project: str | None = None,
    ) -> "Target":
        """The target of an explicit address or of the environment (see `headrace.home.address`).

        `tls_ca` implies TLS, even without `tls://`; it may be a fingerprint (`headrace.pinned`). Raises
        InvalidFieldError, and the errors of `headrace.home.address` and of `pinned.authority_file`."""
        text = default_address(address, login=login).strip()
        home = home_dir()
        by_home = not given_address(address) and text == address_in(home)
        bare = text.removeprefix(TLS)
        tls = bare != text or tls_ca is not None
        if _SCHEME.fullmatch(bare) and not any(map(str.isspace, bare)):
            replicas = [bare]  # perhaps a list in gRPC's own format
        else:
            # `tls://` before each replica means the same as before the first.
            replicas = [part.strip().removeprefix(TLS if tls else "") for part in bare.split(",")]
            replicas = [replica for replica in replicas if replica]
            for replica in replicas or [text]:
                if not _is_replica(replica):
                    raise _fault(field, text, replica)
        if tls and tls_ca is None and (named := os.environ.get("HEADRACE_TLS_CA")):
            tls_ca = Path(named)
        if tls_ca is not None:
            tls_ca = authority_file(tls_ca, replicas)
        token, project = _sound_token(token), _sound_project(project)
        if token and not tls and not (is_on_this_machine(bare) or bare.startswith("unix:")):
            raise _bare_token(text)
        return cls(
            replicas=tuple(dict.fromkeys(replicas)),
            tls=tls,
            tls_ca=tls_ca,
            token=token,
            project=project,
            home=home if by_home else None,
        )

    @classmethod
    def of_user(
        cls,
        address: str | None,
        *,
        tls_ca: str | Path | None = None,
        token: str | None = None,
        project: str | None = None,
    ) -> "Target":
        """The target for a user's client: `of`, with the token of HEADRACE_TOKEN or else the one stored by
        `headrace login`, and with `project` or else that of HEADRACE_PROJECT.

        The login's authority and token are used only for the login's schedulers, and those that `headrace up
        --listen` left in this home only for its own.
        """
        login = logins.kept()
        target = cls.of(
            address,
            tls_ca=Path(tls_ca) if tls_ca else None,
            token=token or os.environ.get("HEADRACE_TOKEN"),
            login=login.address if login else None,
            project=project or os.environ.get("HEADRACE_PROJECT"),
        )
        for own in (login, logins.of_head()):
            if own is not None and target.tls == own.address.startswith(TLS) and own.covers(target.replicas):
                return replace(target, tls_ca=target.tls_ca or own.tls_ca, token=target.token or own.token)
        return target

    @classmethod
    def of_planner(
        cls, address: str, *, field: str, tls_ca: str | Path | None = None, token: str | None = None
    ) -> "Target":
        """A planner's server. Over TLS it also gets the token of HEADRACE_TOKEN, or else that of `headrace
        login` if it is on a host of the login's schedulers. A plain-text server may have been started by anybody
        on that machine.
        """
        ca = Path(tls_ca) if tls_ca else None
        target = cls.of(address, field=field, tls_ca=ca, token=token)
        if not target.tls or target.token:
            return target
        login = logins.kept()
        if login is not None and not login.covers_hosts(target.replicas):
            login = None
        token = _sound_token(os.environ.get("HEADRACE_TOKEN")) or (login.token if login else None)
        return replace(target, tls_ca=target.tls_ca or (login.tls_ca if login else None), token=token)

    def again(self) -> "Target":
        """The target as the home's `address` file names it now, as `up` may have been started again on another
        port. The same target if the file did not name it, or has no address.
        """
        found = address_in(self.home) if self.home else None
        with suppress(InvalidFieldError):
            if found:
                now = Target.of(found, tls_ca=self.tls_ca, token=self.token, project=self.project)
                return replace(now, home=self.home)
        return self

    @property
    def address(self) -> str:
        """The address, for people."""
        return ",".join(self.replicas)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that each call carries."""
        token = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        return (*token, ("headrace-project", self.project)) if self.project else token

    def credentials(self) -> grpc.ChannelCredentials | None:
        """TLS credentials, or None for plain text. Raises InvalidFieldError."""
        if not self.tls:
            return None
        return grpc.ssl_channel_credentials(PEM.bytes(self.tls_ca) if self.tls_ca else None)


def proxy_options(replica: str) -> tuple[tuple[str, int], ...]:
    """A server on this machine is never behind a proxy, whatever the environment says."""
    return (("grpc.enable_http_proxy", 0),) if is_on_this_machine(replica) else ()


def _is_replica(text: str) -> bool:
    match = _REPLICA.fullmatch(text)
    return match is not None and 0 < int(match[2]) <= 65535


def _sound_token(token: str | None) -> str | None:
    """The token without surrounding spaces and line ends, which files of secrets often have."""
    token = (token or "").strip()
    if not (token.isascii() and token.isprintable()):
        violation = Violation(
            field="token",
            message="holds a line end, or another character that no header may have",
            remedy="Use the token alone, in printable ASCII. It may come from HEADRACE_TOKEN.",
        )
        raise InvalidFieldError([violation])
    return token or None


def _sound_project(project: str | None) -> str | None:
    """The project without surrounding spaces; the scheduler checks whether the name is valid."""
    project = (project or "").strip()
    if not (project.isascii() and project.isprintable()):
        violation = Violation(
            field="project",
            value=show_value(project),
            message="holds a character that no header may have",
            remedy="Use lower-case letters, digits and -. It may come from HEADRACE_PROJECT.",
        )
        raise InvalidFieldError([violation])
    return project or None


def _bare_token(text: str) -> InvalidFieldError:
    violation = Violation(
        field="token",
        message=f"would go to {text} for everyone on the way to read",
        remedy=f"Use TLS: {TLS}{text}.",
    )
    return InvalidFieldError([violation])


def _fault(field: str, text: str, replica: str) -> InvalidFieldError:
    host, _, port = replica.rpartition(":")
    remedy = "Use HOST:PORT, or HOST:PORT,HOST:PORT for several schedulers."
    if ":" in host and not host.startswith("[") and "/" not in host:
        remedy = f"Put an IPv6 address in brackets: [{host}]:{port}."
    elif replica.startswith(TLS):
        remedy = f"Write {TLS} once, before the first address."
    shown = repr(text) if replica == text else f"{replica!r} in {text!r}"
    violation = Violation(field=field, value=shown, message="is not an address", remedy=remedy)
    return InvalidFieldError([violation])
