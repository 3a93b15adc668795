"""Where a head node listens: the addresses that it takes, and those that it refuses before anything starts."""

import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.errors import HeadraceError, InvalidFieldError
from headrace.ports import any_port
from headrace_services.up import command
from headrace_services.up import listening as module
from headrace_services.up.children import Options, children
from headrace_services.up.head import make_head
from headrace_services.up.home import let_through
from headrace_services.up.listening import listening

NOT_OURS = "198.51.100.7"
"""An address for documentation, which no machine has."""


def test_an_address_without_a_port_gets_the_given_one_and_workers_two_above() -> None:
    port = any_port()
    at = listening("127.0.0.1", port=port)
    assert (at.users, at.workers) == (f"127.0.0.1:{port}", f"127.0.0.1:{port + 2}")
    assert at.local == at.advertised == at.users
    assert listening(f"127.0.0.1:{port}", port=7440) == at


def test_all_addresses_are_reached_by_this_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_own_address", lambda _: "10.1.2.3")
    at = listening("0.0.0.0", port=0)
    port = at.users.rpartition(":")[2]
    assert (at.users, at.local, at.advertised) == (
        f"0.0.0.0:{port}",
        f"127.0.0.1:{port}",
        f"10.1.2.3:{port}",
    )
    assert {"10.1.2.3", "127.0.0.1", "localhost", socket.gethostname()} <= set(at.names)
    assert "0.0.0.0" not in at.names
    named = listening("0.0.0.0", port=0, advertise="head.example")
    assert named.advertised.startswith("head.example:")
    assert {"head.example", "10.1.2.3"} <= set(named.names)


def test_without_a_network_the_host_name_is_advertised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_own_address", lambda _: None)
    assert listening("0.0.0.0", port=0).advertised.startswith(f"{socket.gethostname()}:")


def test_ipv6_has_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    port = any_port()
    assert listening("::1", port=port).users == f"[::1]:{port}"
    assert listening(f"[::1]:{port}", port=1).workers == f"[::1]:{port + 2}"


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        (f"{NOT_OURS}:7440", "is no address of this machine"),
        ("a host:7440", "is not an address"),
        ("127.0.0.1:99999", "is not an address"),
        ("127.0.0.1:", "is not an address"),
        ("", "is not an address"),
        ("no-such-host.invalid:7440", "is no known host"),
        ("127.0.0.1:65535", "is no port"),
    ],
)
def test_a_bad_address_is_named_with_the_remedy(listen: str, said: str) -> None:
    with pytest.raises(InvalidFieldError, match=said) as caught:
        listening(listen, port=7440)
    (violation,) = caught.value.violations
    assert violation.field == "--listen"
    assert violation.remedy


def test_a_name_that_leads_back_here_is_no_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's /etc/hosts has it for a machine's own name."""
    monkeypatch.setattr(module, "_address", lambda _: "127.0.1.1")
    with pytest.raises(InvalidFieldError, match="no other machine reaches") as caught:
        listening("gpu1", port=0)
    assert "--advertise gpu1" in str(caught.value)


@pytest.mark.parametrize("above", [0, 2])
def test_a_port_in_use_is_named(above: int) -> None:
    with socket.create_server(("127.0.0.1", any_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HeadraceError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            listening(f"127.0.0.1:{port - above}", port=0)
    assert "another port" in caught.value.remedy


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="--advertise"):
        make_head(tmp_path, None, port=7440, advertise="x", replicas=1)
    with pytest.raises(InvalidFieldError, match="--replicas"):
        make_head(tmp_path, "127.0.0.1:0", port=7440, advertise=None, replicas=2)
    with pytest.raises(InvalidFieldError, match="--port"):
        make_head(tmp_path, f"127.0.0.1:{any_port()}", port=7, advertise=None, replicas=1)
    with pytest.raises(InvalidFieldError, match="--advertise"):
        make_head(tmp_path, "127.0.0.1:0", port=7440, advertise="http://x", replicas=1)
    assert list(tmp_path.iterdir()) == []
    assert make_head(tmp_path, None, port=7440, advertise=None, replicas=3) is None


def test_a_head_keeps_its_authority_and_its_children_use_it(tmp_path: Path) -> None:
    first = make_head(tmp_path, "127.0.0.1:0", port=7440, advertise=None, replicas=1)
    head = make_head(tmp_path, "127.0.0.1:0", port=7440, advertise="head.example", replicas=1)
    assert first is not None
    assert head is not None
    assert first.fingerprint == head.fingerprint
    specs = children(Options(home=tmp_path, ports=(head.port,), head=head, track=(("mlflow=http://t", {}),)))
    postgres, scheduler, worker, track = (" ".join(spec.command) for spec in specs)
    assert "postgres" in postgres
    assert f"--listen {head.at.users} --ca {tmp_path}/head/ca --worker-listen {head.at.workers}" in scheduler
    assert "--auth tokens" in scheduler
    assert f"--scheduler tls://{head.at.local}" in worker
    assert f"--tls-ca {head.ca_file} --join @{tmp_path}/head/join" in worker
    assert f"--address tls://{head.at.local}" in track
    (login, join) = head.commands(None)
    assert login[1] == f"headrace --address tls://{head.at.advertised} login --tls-ca {head.fingerprint}"
    assert f"--store {(tmp_path / 'store').as_uri()} --join TOKEN" in join[1]


def test_the_heads_worker_may_run_trials_as_another_user(tmp_path: Path) -> None:
    """Who passes through the home to its own folders, and finds the token and the key in none of them."""
    head = make_head(tmp_path, "127.0.0.1:0", port=7440, advertise=None, replicas=1)
    assert head is not None
    let_through(tmp_path)
    specs = children(Options(home=tmp_path, ports=(head.port,), head=head, run_as="trials"))
    (worker,) = [spec for spec in specs if spec.name == "worker"]
    assert worker.command[-2:] == ("--run-as", "trials")
    assert [(tmp_path / name).stat().st_mode & 0o077 for name in (".", "workers", "head")] == [0o11, 0o11, 0]


@pytest.mark.parametrize(
    ("options", "warns"), [([], True), (["--no-worker"], False), (["--run-as", "trials"], False)]
)
def test_up_warns_where_trials_can_read_the_heads_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], warns: bool
) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(command, "run", nothing)
    app = typer.Typer()
    app.command()(command.up)
    line = ["--home", str(tmp_path), "--listen", "127.0.0.1:0", "--no-console", *options]
    said = CliRunner().invoke(app, line)
    assert said.exit_code == 0, said.output
    assert ("--run-as USER" in said.output) == warns


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "head").write_text("")
    with pytest.raises(HeadraceError) as caught:
        make_head(tmp_path, "127.0.0.1:0", port=7440, advertise=None, replicas=1)
    assert str(tmp_path) in caught.value.message
