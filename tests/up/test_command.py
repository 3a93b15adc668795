"""The options of `headrace up`, the lock on a home, and the address that it leaves for other commands."""

import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace import ports
from headrace.errors import HeadraceError
from headrace.home import address_in
from headrace.ports import any_port, outgoing_from
from headrace_services.up import home as up_home
from headrace_services.up.children import Options, children
from headrace_services.up.ports import free_ports

HOLDER = """
import pathlib, signal, sys
from headrace_services.up.home import hold
with hold(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


def test_a_home_is_held_by_one_process_and_free_again_when_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(up_home.HomeInUseError) as caught, up_home.hold(tmp_path):
            pytest.fail("held twice")
        assert f"(process {holder.pid})" in caught.value.message
        assert "--home" in caught.value.remedy
        holder.kill()
    with up_home.hold(tmp_path):
        assert (tmp_path / up_home.LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_a_home_that_cannot_be_one_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HeadraceError, match=f"{home} cannot be the home") as caught, up_home.hold(home):
            pytest.fail("held")
        assert "--home" in caught.value.remedy


def test_the_address_is_there_while_it_serves_and_gone_after(tmp_path: Path) -> None:
    with up_home.advertised(tmp_path, ["127.0.0.1:7440", "127.0.0.1:7441"]):
        assert address_in(tmp_path) == "127.0.0.1:7440,127.0.0.1:7441"
    assert address_in(tmp_path) is None


def test_a_home_that_is_held_has_no_address_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "address").write_text("127.0.0.1:1\n")
    with up_home.hold(tmp_path):
        assert address_in(tmp_path) is None


def test_a_command_that_asks_who_holds_the_home_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / up_home.LOCK_FILE).write_text("4711\n")
    with (tmp_path / up_home.LOCK_FILE).open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with up_home.hold(tmp_path):
            pass


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HeadraceError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            free_ports(port, 1)
    assert "--port" in caught.value.remedy
    assert "Another Headrace may run there" in caught.value.remedy
    assert f"headrace --address 127.0.0.1:{port} studies" in caught.value.remedy


def test_free_ports_differ() -> None:
    assert len(set(free_ports(0, 4))) == 4


@pytest.mark.skipif(outgoing_from() < 16_000, reason="outgoing connections may have any port here")
def test_no_outgoing_connection_can_take_a_free_port() -> None:
    """Seconds pass between the choice of a port and the program that listens there, and restarts come later."""
    assert max(free_ports(0, 16)) < outgoing_from()
    with (
        socket.create_server(("127.0.0.1", 0)) as there,
        socket.create_connection(there.getsockname()) as out,
    ):
        assert out.getsockname()[1] >= outgoing_from()


def test_without_a_range_of_its_own_any_free_port_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "range"
    monkeypatch.setattr(ports, "_OUTGOING", told)
    assert outgoing_from() == 32768
    told.write_text("1024\t65535\n")
    assert outgoing_from() == 1024
    assert any_port() > 0


def test_children_stand_in_the_order_of_need(tmp_path: Path) -> None:
    names = [spec.name for spec in children(Options(home=tmp_path, ports=(7440,)))]
    assert names == ["postgres", "scheduler", "worker"]
    replicas = [spec.name for spec in children(Options(home=tmp_path, ports=(7440, 7441), worker=False))]
    assert replicas == ["postgres", "scheduler-1", "scheduler-2"]


def test_the_users_own_database_replaces_the_embedded_one_and_stays_out_of_the_process_list(
    tmp_path: Path,
) -> None:
    url = "postgresql://user:secret@db.example/headrace"
    scheduler, _ = children(Options(home=tmp_path, ports=(7440,), database_url=url))
    assert scheduler.env["HEADRACE_DATABASE_URL"] == url
    assert not any("secret" in word for word in scheduler.command)


def test_options_reach_the_children(tmp_path: Path) -> None:
    options = Options(
        home=tmp_path, ports=(7440,), slots=3, store="s3://bucket/x", heartbeat_interval_s=0.5, lease_ttl_s=2
    )
    _, scheduler, worker = (" ".join(spec.command) for spec in children(options))
    assert "scheduler --listen 127.0.0.1:7440 --heartbeat-interval 0.5 --lease-ttl 2" in scheduler
    assert "--name local --store s3://bucket/x --cpu-slots 3" in worker


def test_a_folder_for_checkpoints_becomes_the_url_that_a_worker_takes(tmp_path: Path) -> None:
    worker = children(Options(home=tmp_path, ports=(7440,), store=str(tmp_path / "mine")))[-1]
    assert worker.command[-2:] == ("--store", (tmp_path / "mine").as_uri())
    assert worker.env["HEADRACE_HOME"] == str(tmp_path)
