"""The worker's control daemon of MPS: started, reused, found again, restarted, ended; and what a share gets."""

import asyncio
import importlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from mps_site import BESIDE, MpsHome, MpsSite, mps_home, outcome
from other_user_site import USER, as_root, interpreter
from scripted_scheduler import ScriptedScheduler, until

import headrace.mps
from headrace.mps import BINARY, PIPE_DIRECTORY, Card, ComputeMode, Facts, Mode, control_at, uid_of
from headrace.v1 import worker_pb2
from headrace_worker import mps, mps_control, mps_server
from headrace_worker.devices import discover
from headrace_worker.mps import Mps, NotServedError, Users
from headrace_worker.mps_control import MpsControl, MpsError

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]
SHARE = worker_pb2.Grant(slots=[0], milli=250, memory_bytes=1 << 30)
CARD = "GPU-fake-w-0"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsHome]:
    yield from mps_home(monkeypatch)


@dataclass
class Workers:
    """Owners of MPS on one machine."""

    home: MpsHome

    def make(self, owner: str = "home-1", mode: Mode = Mode.AUTO, **settings: Any) -> Mps:
        pipe, environ = self.home.pipe, os.environ
        fields = {
            "pipe": pipe,
            "environ": environ,
            "devices": discover(worker="w", fake_gpus=2).devices,
            "users": Users(worker=os.geteuid(), trials=os.geteuid()),
        }
        return Mps(mode, MpsControl(pipe, owner, environ), **{**fields, **settings})


@pytest.fixture
def workers(home: MpsHome) -> Workers:
    return Workers(home)


@pytest.mark.smoke
async def test_a_share_gets_the_pipe_directory_and_a_hard_limit_above_its_budget(workers: Workers) -> None:
    env = await workers.make().join("a", "trial a", SHARE)
    assert env == {
        "CUDA_MPS_PIPE_DIRECTORY": str(workers.home.pipe),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{CARD}={1024 + 768}M",
    }


@pytest.mark.parametrize(
    "grant",
    [worker_pb2.Grant(slots=[0]), worker_pb2.Grant(slots=[0, 1]), worker_pb2.Grant(slots=[7], milli=250)],
)
async def test_whoever_has_no_share_of_a_gpu_starts_no_daemon(
    workers: Workers, grant: worker_pb2.Grant
) -> None:
    assert await workers.make().join("a", "trial a", grant) == {}
    assert control_at(workers.home.pipe) is None


@pytest.mark.parametrize(
    ("budget", "limit_mib"), [(4 << 30, 4096), (1 << 30, 1024 + 768), (6 << 30, 6144), (0, None)]
)
async def test_the_limits_of_a_cards_shares_fit_on_it(
    workers: Workers, budget: int, limit_mib: int | None
) -> None:
    """A context counts, unless the budget is all of the share. A larger budget is the user's decision."""
    grant = worker_pb2.Grant(slots=[0], milli=250, memory_bytes=budget)
    env = await workers.make().join("a", "trial a", grant)
    expected = None if limit_mib is None else f"{CARD}={limit_mib}M"
    assert env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == expected


async def test_it_is_started_once_and_ends_with_the_worker(workers: Workers) -> None:
    owner = workers.make()
    await owner.join("a", "trial a", SHARE)
    first = control_at(workers.home.pipe)
    await owner.join("b", "trial b", SHARE)
    assert control_at(workers.home.pipe) == first
    assert first is not None
    assert first.owner == "home-1"
    await owner.close()
    assert control_at(workers.home.pipe) is None


@pytest.mark.smoke
async def test_one_that_runs_already_is_used_and_left_alone(workers: Workers) -> None:
    workers.home.pipe.mkdir()
    await _start_as_administrator()
    before = control_at(workers.home.pipe)
    owner = workers.make()
    assert PIPE_DIRECTORY in await owner.join("a", "trial a", SHARE)
    await owner.close()
    assert control_at(workers.home.pipe) == before
    assert before is not None
    assert before.owner == ""


async def _start_as_administrator() -> None:
    """Starts the daemon as an administrator does, with no mark of a worker."""
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(BINARY, "-d", stdout=nothing, env=dict(os.environ))
    assert await process.wait() == 0


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.smoke
async def test_the_next_daemon_of_a_killed_one_finds_its_control_daemon_and_ends_its_servers(
    workers: Workers, home: MpsHome
) -> None:
    await workers.make().join("a", "trial a", SHARE)  # killed here: nothing of it is left but the daemon
    (before,) = await home.control.servers()
    successor = workers.make()
    await successor.join("b", "trial b", SHARE)
    (after,) = await home.control.servers()
    assert after != before, "its clients were killed with work in flight"
    stranger = workers.make("home-2")
    await stranger.join("c", "trial c", SHARE)
    assert await home.control.servers() == [after]
    await stranger.close()
    assert control_at(home.pipe) is not None, "it is not the stranger's"
    await successor.close()
    assert control_at(home.pipe) is None


KILLED_AT = """
import asyncio, os, sys
from headrace.mps import Mode
from headrace.v1 import worker_pb2
from headrace_worker.devices import discover
from headrace_worker.mps import Mps, Users
from headrace_worker.mps_control import MpsControl
from pathlib import Path
lines, kill_at, pipe = 0, int(sys.argv[1]), Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
def trace(frame, event, argument):
    global lines
    if not frame.f_code.co_filename.endswith(("/mps.py", "/mps_control.py", "/mps_server.py", "/mps_ladder.py")):
        return None
    if event == "line":
        lines += 1
        if lines == kill_at:
            os.kill(os.getpid(), 9)
    return trace
async def main():
    owner = Mps(Mode.ON, MpsControl(pipe, "home-1", os.environ), pipe=pipe, environ=os.environ,
        devices=discover(worker="w", fake_gpus=2).devices, users=Users(worker=os.geteuid(), trials=os.geteuid()))
    sys.settrace(trace)
    await owner.join("a", "trial a", worker_pb2.Grant(slots=[0], milli=250))
    await owner.close()
    sys.settrace(None)
    print(lines)
asyncio.run(main())
"""


async def test_a_worker_may_be_killed_at_any_line_that_starts_or_ends_it(
    workers: Workers, home: MpsHome
) -> None:
    def run(kill_at: int) -> "subprocess.CompletedProcess[str]":
        program = [sys.executable, "-c", KILLED_AT, str(kill_at)]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    lines = int((await asyncio.to_thread(run, 0)).stdout)
    assert lines > 100
    step = lines // 40
    left = 0
    for kill_at in range(1, lines * 9 // 10, step):  # a run that waits less often has fewer lines
        assert (await asyncio.to_thread(run, kill_at)).returncode == -signal.SIGKILL
        left += control_at(home.pipe) is not None
        successor = workers.make()
        assert PIPE_DIRECTORY in await successor.join("b", "trial b", SHARE)
        await successor.close()
        assert control_at(home.pipe) is None, f"left behind after a kill at line {kill_at} of {lines}"
    assert left > 1, "some kills came while it ran"


async def test_it_stays_while_others_use_it(workers: Workers, home: MpsHome) -> None:
    owner = workers.make()
    await owner.join("a", "trial a", SHARE)
    with _client(home):
        await until(_clients)
        await owner.close()
        assert control_at(home.pipe) is not None


def _client(home: MpsHome, user: int | None = None) -> "subprocess.Popen[bytes]":
    body = "import sys, mps_client; card = mps_client.Card(); sys.stdin.read()"
    return subprocess.Popen(
        [interpreter() if user is not None else sys.executable, "-c", body],
        stdin=subprocess.PIPE,
        user=user,
        cwd=Path(__file__).parent,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": CARD, PIPE_DIRECTORY: str(home.pipe)},
    )


def _clients() -> str:
    return _run("sh", "-c", f"echo get_client_list $(echo get_server_list | {BINARY}) | {BINARY}")


async def test_a_dead_one_is_replaced_before_the_next_trial(workers: Workers, home: MpsHome) -> None:
    owner = workers.make()
    await owner.join("a", "trial a", SHARE)
    home.kill()
    assert PIPE_DIRECTORY in await owner.join("b", "trial b", SHARE)
    assert control_at(home.pipe) is not None


async def test_its_environment_holds_no_secret_of_the_worker(
    workers: Workers, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    devices = discover(worker="w", fake_gpus=2).devices
    devices[1].unshared = True
    owner = workers.make(devices=devices)
    await owner.check()
    await owner.join("a", "trial a", SHARE)
    found = control_at(home.pipe)
    assert found is not None
    environ = psutil.Process(found.pid).environ()
    assert "AWS_SECRET_ACCESS_KEY" not in environ
    assert environ["CUDA_VISIBLE_DEVICES"] == CARD, "it sees the cards that it can serve, and no others"


REFUSALS = {
    "refuses to start": (
        '{"refuses": "MPS is not supported here"}',
        "it did not start: MPS is not supported here",
    ),
    "starts no server": ('{"start_server": "no device"}', "'start_server -uid"),
    "does not answer": ('{"hangs": "get_server_list"}', "no answer to 'get_server_list'"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_what_it_refuses_is_said_and_shares_take_turns(
    workers: Workers, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_control.MpsControl.ask, "__defaults__", (1.0,))
    text, says = REFUSALS[refusal]
    workers.home.inject(text)
    owner = workers.make()
    assert await owner.join("a", "trial a", SHARE) == {}
    assert says in owner.words
    assert owner.words.startswith("shares of a GPU take turns, without MPS: ")
    with pytest.raises(NotServedError, match="MPS control daemon in"):
        await workers.make(mode=Mode.ON).join("b", "trial b", SHARE)


async def test_without_the_program_a_worker_that_needs_it_does_not_start(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workers.home.bin / BINARY).unlink()
    owner = workers.make()
    await owner.check()
    assert owner.words.startswith(
        f"shares of a GPU would take turns, without MPS: {BINARY} is not on the PATH"
    )
    assert await owner.join("a", "trial a", SHARE) == {}
    assert owner.words.startswith("shares of a GPU take turns")
    with pytest.raises(ValueError, match=f"--mps on: {BINARY} is not on the PATH. Install it"):
        await workers.make(mode=Mode.ON).check()
    off = workers.make(mode=Mode.OFF)
    await off.check()
    assert await off.join("a", "trial a", SHARE) == {}
    assert off.words == ""


async def test_a_card_of_a_large_job_is_not_shared(workers: Workers) -> None:
    owner = workers.make(owned=lambda: {CARD})
    with pytest.raises(NotServedError, match=f"{CARD} belongs to a large job"):
        await owner.join("a", "trial a", SHARE)
    assert control_at(workers.home.pipe) is None


async def test_another_users_clients_are_not_waited_for(
    workers: Workers, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = workers.make()
    await owner.join("a", "trial a", SHARE)
    with _client(home):
        await until(_clients)
        monkeypatch.setattr(mps_server, "uid_of", lambda _: 4242)
        assert await owner.join("b", "trial b", SHARE) == {}
        assert "works for user 4242 (1 clients)" in owner.words


@as_root
async def test_a_server_works_for_the_user_of_the_trials(workers: Workers, home: MpsHome) -> None:
    nobody = pwd.getpwnam(USER).pw_uid
    owner = workers.make(users=Users(worker=0, trials=nobody))
    await owner.join("a", "trial a", SHARE)
    (server,) = await home.control.servers()
    assert uid_of(server) == nobody
    with _client(home, user=nobody):
        await until(_clients)
        assert PIPE_DIRECTORY in await owner.join("b", "trial b", SHARE), "a second one of the same user"
        with _client(home) as of_root:
            assert await asyncio.to_thread(of_root.wait) == 1, "it would wait for the other user's clients"
        for_root = workers.make()
        assert await for_root.join("c", "trial c", SHARE) == {}
        assert f"works for user {nobody} (1 clients), and those of user 0 would wait" in for_root.words


async def test_no_client_joins_while_the_server_recovers(
    workers: Workers, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "READY_S", 1.0)
    ended: list[str] = []

    async def end_idle() -> None:
        ended.append("idle")

    owner = workers.make(mode=Mode.ON, end_idle=end_idle)
    await owner.join("a", "trial a", SHARE)
    with _client(home) as client:
        await until(_clients)
        await _fault(home)
        with pytest.raises(NotServedError, match="recovers from a fault once its last client has ended"):
            await owner.join("b", "trial b", SHARE)
        assert ended, "a process that waits for its next trial is a client too"
        by_turns = workers.make()
        assert await by_turns.join("b", "trial b", SHARE) == {}, "auto waits no longer than that"
        assert "accepts no client" in by_turns.words
        client.kill()
    assert PIPE_DIRECTORY in await owner.join("c", "trial c", SHARE)


async def _fault(home: MpsHome) -> None:
    (server,) = await home.control.servers()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(home.pipe / f"server-{server}"))
        connection.sendall(f"client {CARD}\nfault an illegal memory access\n".encode())
        await until(lambda: b"illegal" in connection.recv(100))


async def test_an_answer_that_does_not_come_is_given_up(
    home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = home.control
    await control.start()
    home.inject('{"hangs": "get_server_list"}')
    with pytest.raises(MpsError, match="no answer to 'get_server_list'"):
        await control.ask("get_server_list", 0.3)


@pytest.mark.smoke
async def test_one_that_hangs_delays_the_worker_once(home: MpsHome, monkeypatch: pytest.MonkeyPatch) -> None:
    control = home.control
    await control.start()
    home.inject('{"hangs": "get_server_list"}')
    with pytest.raises(MpsError):
        await control.ask("get_server_list", 0.3)
    asked: list[object] = []
    monkeypatch.setattr(asyncio, "create_subprocess_exec", lambda *words, **_: asked.append(words))
    for command in ("get_server_list", "get_client_list 7"):
        with pytest.raises(MpsError, match="is not asked again for 60 s"):
            await control.ask(command)
    assert not asked


@pytest.mark.smoke
async def test_a_driver_that_hangs_is_asked_once(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "ANSWER_S", 0.2)
    hangs, asked = threading.Event(), []

    def look(pipe: Path, *_: object) -> Facts:
        asked.append(pipe)
        hangs.wait(30)
        return Facts(pipe=pipe, binary=None)

    monkeypatch.setattr(mps, "look", look)
    owner = workers.make()
    for name in "abc":
        assert await owner.join(name, f"trial {name}", SHARE) == {}
    assert len(asked) == 1
    assert "the driver does not answer" in owner.words
    hangs.set()
    await asyncio.sleep(0.1)  # the thread ends
    await owner.join("d", "trial d", SHARE)
    assert "is not on the PATH" in owner.words, "it is asked again once it has answered"


async def test_one_of_another_container_is_not_replaced(
    workers: Workers, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.control.start()
    monkeypatch.setattr(mps_control, "control_at", lambda _: None)  # its process is not to be seen here
    monkeypatch.setattr(headrace.mps, "control_at", lambda _: None)
    owner = workers.make()
    assert await owner.join("a", "trial a", SHARE) == {}
    assert "a control daemon of another container serves" in owner.words


@pytest.mark.smoke
async def test_a_folder_that_is_a_link_is_not_used(workers: Workers, home: MpsHome, tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir(mode=0o700)
    home.pipe.symlink_to(target)
    owner = workers.make()
    assert await owner.join("a", "trial a", SHARE) == {}
    assert "is a link" in owner.words
    assert target.stat().st_mode & 0o777 == 0o700
    assert not list(target.iterdir())


@pytest.mark.smoke
def test_the_benchmark_of_sharing_uses_it_as_a_worker_does(
    home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))
    gpu_sharing = importlib.import_module("gpu_sharing")
    with pytest.raises(gpu_sharing.UnavailableError, match="no GPU"), gpu_sharing.product():
        pass
    monkeypatch.setattr(gpu_sharing, "discover", lambda worker: discover(worker=worker, fake_gpus=1))
    with gpu_sharing.product() as env:
        pipe = Path(env[PIPE_DIRECTORY])
        assert control_at(pipe) is not None
    assert control_at(pipe) is None
    (home.bin / BINARY).unlink()
    with pytest.raises(gpu_sharing.UnavailableError, match="is not on the PATH"), gpu_sharing.product():
        pass


@pytest.mark.smoke
async def test_where_an_administrator_runs_it_whole_gpus_are_served_too(
    workers: Workers, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await workers.make().check() is False
    home.pipe.mkdir()
    await _start_as_administrator()
    found = control_at(home.pipe)
    card = Card(uuid=CARD, mode=ComputeMode.EXCLUSIVE)
    facts = Facts(pipe=home.pipe, binary="/bin/x", control=found, cards=(card,))
    monkeypatch.setattr(mps, "look", lambda *_: facts)
    owner = workers.make()
    assert await owner.check() is True, "trials keep the worker's CUDA_MPS_PIPE_DIRECTORY"
    assert owner.words == ""
    assert PIPE_DIRECTORY in await owner.join("a", "trial a", SHARE), (
        "NVIDIA advises the exclusive mode with it"
    )


async def test_a_worker_without_mps_gives_its_trials_no_pipe_directory_of_its_own(
    tmp_path: Path, scheduler: ScriptedScheduler, home: MpsHome
) -> None:
    """A trial with a whole GPU is no client, although the worker's environment names the pipe directory."""
    site = MpsSite(tmp_path, scheduler)
    try:
        site.start()
        stream = await scheduler.stream()
        whole = site.share("whole", "mark('env', os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'none'))")
        whole.grant.milli = whole.grant.memory_bytes = 0
        stream.send(assign=whole)
        assert outcome((await site.ends(stream, 1))["whole"]) == "FINISHED"
        assert await site.marked("env") == "none"
        assert control_at(home.pipe) is None
    finally:
        await site.leave()


async def test_the_worker_says_how_its_gpus_are_shared(
    tmp_path: Path, scheduler: ScriptedScheduler, home: MpsHome
) -> None:
    site = MpsSite(tmp_path, scheduler)
    try:
        daemon = site.start()
        stream = await scheduler.stream()
        await site.run(stream, a=BESIDE, b=BESIDE)
        await until(lambda: stream.all("heartbeat")[-1].mps == "MPS serves 2 trials")
        assert daemon._figures()["mps_clients"] == 2
        found = control_at(home.pipe)
        site.mark("finish")
        await site.ends(stream, 2)
    finally:
        await site.leave()
    assert found is not None
    assert not psutil.pid_exists(found.pid) or psutil.Process(found.pid).status() == psutil.STATUS_ZOMBIE
    assert {one.exit_code for one in stream.all("exited")} == {0}


async def test_a_card_that_accepts_one_process_is_named_and_offered_for_whole_trials_only(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(uuid=CARD, mode=ComputeMode.EXCLUSIVE)
    monkeypatch.setattr(mps, "look", lambda pipe, *_: Facts(pipe=pipe, binary="/bin/x", cards=(card,)))
    devices = discover(worker="w", fake_gpus=2).devices
    owner = workers.make(devices=devices, mode=Mode.ON)
    await owner.check()
    assert owner.words.startswith(f"GPU {CARD} is in exclusive mode and accepts one process at a time")
    assert [device.unshared for device in devices] == [True, False], "the scheduler places no share there"


async def test_a_folder_that_the_trials_user_cannot_enter_is_said(workers: Workers) -> None:
    users = Users(worker=os.geteuid(), trials=os.geteuid(), may_enter=lambda _: False)
    owner = workers.make(users=users)
    assert await owner.join("a", "trial a", SHARE) == {}
    assert "cannot enter the MPS folder" in owner.words


async def test_no_client_joins_before_the_server_is_ready_or_while_it_ends_anothers_work(
    workers: Workers, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "READY_S", 0.5)
    home.inject('{"status": "INITIALIZING"}')
    owner = workers.make()
    assert await owner.join("a", "trial a", SHARE) == {}
    assert "accepts no client: its server is INITIALIZING" in owner.words
    home.inject("{}")
    assert PIPE_DIRECTORY in await owner.join("b", "trial b", SHARE)
    owner._ladder._ending = 1
    assert await owner.join("c", "trial c", SHARE) == {}
    assert "accepts no client: it ends the work of a trial" in owner.words
