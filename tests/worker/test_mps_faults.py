"""Who is charged when trials share a GPU: twelve faults, with real processes on a control daemon without a GPU."""

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from bundle_site import PROGRAM
from mps_site import BESIDE, CARD, HERE, MpsHome, MpsSite, mps_home, outcome
from other_user_site import USER, as_root, daemon_of_root, interpreter
from scripted_scheduler import ScriptedScheduler, Stream, until

from headrace.mps import BINARY, PIPE_DIRECTORY, uid_of
from headrace.v1 import event_pb2
from headrace_worker import mps, mps_control, mps_ladder
from headrace_worker.attempt import Attempt
from headrace_worker.devices import discover
from headrace_worker.mps_control import is_running

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsHome]:
    yield from mps_home(monkeypatch)


@pytest.fixture
async def site(
    tmp_path: Path, scheduler: ScriptedScheduler, home: MpsHome, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MpsSite]:
    monkeypatch.setattr(mps, "SETTLE_S", 1.5)
    place = MpsSite(tmp_path, scheduler)
    yield place
    place.mark("finish")
    await place.leave()


@pytest.fixture
async def stream(site: MpsSite) -> Stream:
    site.start()
    return await site.scheduler.stream()


CHARGED = ("FAILED", False)
LOST = ("LOST", False)
WELL = ("FINISHED", False)
NOT_CHARGED = ("RELEASED", False)
"""Ended by another trial that is known, or by the worker: it is no loss."""
COUNTED = ("RELEASED", True)
"""Ended by a fault of which nobody is known to be the cause: it is no loss, and the scheduler counts it."""

FAULTS = {
    "its own error": ("wait('go'); card.sync(); raise ValueError('loss is nan')", CHARGED, WELL),
    "more memory than its share": ("wait('go'); card.allocate(3 << 30)", CHARGED, WELL),
    "an illegal access, which reaches everybody": ("wait('go'); card.fault(ILLEGAL)", COUNTED, COUNTED),
    "a failed assertion in its kernel": (
        "wait('go'); print(ASSERTION, flush=True); card.fault(ASSERTED)",
        CHARGED,
        NOT_CHARGED,
    ),
    "a crash with work in flight": (
        "wait('go'); card.launch(); os.kill(os.getpid(), 11)",
        CHARGED,
        NOT_CHARGED,
    ),
    "an illegal access that the card contains": (
        "wait('go'); raise RuntimeError('CUDA error: ' + ILLEGAL)",
        CHARGED,
        WELL,
    ),
}
"""What a trial does, how it ends, and how the two beside it end."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_who_is_charged_for_what_a_trial_does(site: MpsSite, stream: Stream, fault: str) -> None:
    body, own, others = FAULTS[fault]
    await site.run(stream, culprit=body, b=BESIDE, c=BESIDE)
    site.mark("go")
    await stream.get("exited", 1 if others == WELL else 3)
    site.mark("finish")
    ends = await site.ends(stream, 3)
    assert {name: (outcome(end), end.shared_fault) for name, end in ends.items()} == {
        "culprit": own,
        "b": others,
        "c": others,
    }


async def test_a_trial_that_is_killed_from_outside_is_the_only_one_that_is_lost(
    site: MpsSite, stream: Stream
) -> None:
    await site.run(stream, a="card.launch(); wait('never')", b=BESIDE, c=BESIDE)
    os.kill(int(await site.marked("a")), signal.SIGKILL)
    ends = await site.ends(stream, 3)
    found = {name: (outcome(end), end.shared_fault) for name, end in ends.items()}
    assert found == {"a": LOST, "b": NOT_CHARGED, "c": NOT_CHARGED}
    assert "studies/s/trials/0 ended the MPS server" in ends["b"].error


@pytest.mark.smoke
async def test_nobody_is_charged_for_the_death_of_a_server(
    site: MpsSite, stream: Stream, home: MpsHome
) -> None:
    await site.run(stream, a=BESIDE, b=BESIDE, c=BESIDE)
    (server,) = await home.control.servers()
    os.kill(server, signal.SIGKILL)
    ends = await site.ends(stream, 3)
    assert {(outcome(end), end.shared_fault) for end in ends.values()} == {COUNTED}
    await site.run(stream, d="")
    assert outcome((await site.ends(stream, 4))["d"]) == "FINISHED", "there is a new server"


async def test_the_death_of_the_control_daemon_ends_nobody(
    site: MpsSite, stream: Stream, home: MpsHome
) -> None:
    await site.run(stream, a=BESIDE, b=BESIDE)
    home.kill()
    await site.run(stream, c=BESIDE)
    site.mark("finish")
    ends = await site.ends(stream, 3)
    assert {(outcome(end), end.shared_fault) for end in ends.values()} == {WELL}


@pytest.mark.smoke
async def test_a_trial_that_does_not_end_is_taken_off_the_card_before_it_is_killed(
    site: MpsSite, stream: Stream
) -> None:
    await site.run(stream, a="card.launch(); wait('never')", b=BESIDE, c=BESIDE)
    stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
    await stream.get("exited")
    site.mark("finish")
    ends = await site.ends(stream, 3)
    assert {name: outcome(end) for name, end in ends.items()} == {
        "a": "RELEASED",
        "b": "FINISHED",
        "c": "FINISHED",
    }


@pytest.mark.smoke
async def test_a_trial_that_is_slow_to_obey_is_not_charged_for_what_it_says_off_the_card(
    site: MpsSite, stream: Stream
) -> None:
    body = """
report(1)
mark("told")
while True:
    card.launch()
    time.sleep(0.005)  # the work on the card, in flight
    card.sync()
"""
    await site.run(stream, b=BESIDE)
    stream.send(assign=site.share("a", body, attached=True, milestone=1))
    await site.marked("a")
    stream.decide(await stream.get("report"), event_pb2.DECISION_ACTION_STOP)
    ends = await site.ends(stream, 1)
    assert outcome(ends["a"]) == "RELEASED"
    site.mark("finish")
    ends = await site.ends(stream, 2)
    assert outcome(ends["b"]) == "FINISHED"


@pytest.mark.parametrize("gone", ["client", "control daemon"])
async def test_nobody_is_asked_to_leave_for_one_that_cannot_be_ended_by_mps(
    site: MpsSite, stream: Stream, home: MpsHome, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client left the card by itself at that moment, or the control daemon is dead: draining helps nobody."""
    asked: list[str] = []
    monkeypatch.setattr(Attempt, "leave_when_saved", lambda self, _: asked.append(self.lease.trial))
    body = "wait('never')" if gone == "control daemon" else "card.leave(); mark('closed'); wait('never')"
    await site.run(stream, a=body, b=BESIDE)
    if gone == "client":
        await site.marked("closed")
    else:
        home.kill()
    stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
    assert outcome((await site.ends(stream, 1))["a"]) == "RELEASED"
    assert not asked
    site.mark("finish")
    assert outcome((await site.ends(stream, 2))["b"]) == "FINISHED"


async def test_who_was_asked_to_leave_stays_once_the_stuck_one_has_gone(
    site: MpsSite, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_ladder, "_CHECK_S", 0.3)
    body = "card.stick(); wait('give up'); card.leave(); wait('never')"
    await site.run(stream, a=body, deaf=BESIDE)
    scheduler = asyncio.create_task(_lets_continue(stream))
    deaf_too = LEAVES.replace("save=asked()", "save=False").replace("sleep(0.02)", "sleep(0.5)")
    stream.send(assign=site.share("b", deaf_too, attached=True, milestone=1_000_000))
    await site.marked("b")
    await stream.get("report", 2)
    stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
    daemon, _ = site.daemons[-1]
    await until(lambda: any(one._when_saved is not None for one in daemon._attempts.values()))
    site.mark("give up")
    ends = await site.ends(stream, 1)
    assert outcome(ends["a"]) == "RELEASED"
    await until(lambda: all(one._when_saved is None for one in daemon._attempts.values()))
    scheduler.cancel()


@as_root
async def test_trials_of_another_user_share_a_card_and_are_taken_off_it(
    open_folder: Path, scheduler: ScriptedScheduler, home: MpsHome
) -> None:
    site = MpsSite(open_folder, scheduler)
    site.marks.chmod(0o777)
    pipe = {PIPE_DIRECTORY: str(home.pipe)}
    async with daemon_of_root(site, 0, options=("--fake-gpus", "1", "--mps", "on"), **pipe):
        stream = await scheduler.stream()
        for name, body in {"a": "card.launch(); wait('never')", "b": BESIDE}.items():
            assign = site.share(name, body)
            assign.template.command.args[0] = interpreter()
            stream.send(assign=assign)
        for name in "ab":
            pid = int(await site.marked(name))
            assert uid_of(pid) == pwd.getpwnam(USER).pw_uid
        (server,) = await home.control.servers()
        assert uid_of(server) == pwd.getpwnam(USER).pw_uid
        assert len(await home.control.clients(server)) == 2
        stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
        assert outcome((await site.ends(stream, 1))["a"]) == "RELEASED"
        site.mark("finish")
        assert outcome((await site.ends(stream, 2))["b"]) == "FINISHED"


async def test_a_trial_alone_on_its_card_is_not_charged_for_the_death_of_the_server(
    site: MpsSite, stream: Stream, home: MpsHome
) -> None:
    await site.run(stream, a=BESIDE)
    (server,) = await home.control.servers()
    os.kill(server, signal.SIGKILL)
    (end,) = (await site.ends(stream, 1)).values()
    assert (outcome(end), end.shared_fault) == COUNTED


@pytest.mark.parametrize("words", ["CROWDED", "UNREADY"])
async def test_a_trial_that_is_not_accepted_is_not_charged(
    site: MpsSite, stream: Stream, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """One for which there is no room is counted at once, one that came at the wrong moment only after some times."""
    monkeypatch.setattr(mps, "UNREADY", 1)
    text = {
        "CROWDED": "the hardware resources required to create MPS client have been exhausted",
        "UNREADY": "the MPS server is not ready to accept new MPS client requests",
    }[words]
    body = f"raise RuntimeError('CUDA error: {text}')"
    first = site.share("a", body)
    stream.send(assign=first)
    end = (await site.ends(stream, 1))["a"]
    assert (outcome(end), end.shared_fault) == ("RELEASED", words == "CROWDED")
    again = site.share("b", body)
    again.lease.trial = first.lease.trial
    stream.send(assign=again)
    end = (await site.ends(stream, 2))["b"]
    assert (outcome(end), end.shared_fault) == COUNTED


async def test_a_server_that_others_use_is_not_restarted(
    site: MpsSite, stream: Stream, home: MpsHome
) -> None:
    await site.run(stream, a="card.stick(); wait('never')", b=BESIDE)
    (server,) = await home.control.servers()
    with stranger(home) as its_output:
        stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
        ends = await site.ends(stream, 2)
        assert await home.control.servers() == [server]
        assert "its work ended" in its_output.read_text(), "the kill hurt it, and nothing else could be done"
    assert {name: (outcome(end), end.shared_fault) for name, end in ends.items()} == {
        "a": NOT_CHARGED,
        "b": NOT_CHARGED,
    }
    assert "killed a client that it could not end" in ends["b"].error


@contextmanager
def stranger(home: MpsHome) -> Iterator[Path]:
    """A client that this worker has not started; its output."""
    said = home.bin / "stranger.log"
    body = (
        "import sys, time\nfrom mps_client import Card\ncard = Card()\nprint('joined', flush=True)\n"
        "try:\n    while True:\n        card.launch(); time.sleep(0.01); card.sync()\n"  # work in flight
        "except RuntimeError:\n    print('its work ended', flush=True)\n"
    )
    program = home.bin / "stranger.py"
    program.write_text(body)
    (card,) = {one.uuid for one in discover(worker="w1", fake_gpus=1).devices}
    environ = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "CUDA_VISIBLE_DEVICES": card,
        PIPE_DIRECTORY: str(home.pipe),
    }
    # Its parent ends at once, so it is nobody's child here.
    command = f"{sys.executable} {program} > {said} 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", command], env=environ, capture_output=True, check=True).stdout)
    try:
        ends_at = time.monotonic() + 20
        while "joined" not in (said.read_text() if said.exists() else ""):
            assert time.monotonic() < ends_at
            time.sleep(0.05)  # between two looks at what it has written
        yield said
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("failure", "restarted"), [('{"hangs": "terminate_client"}', True), ('{"blocks": true}', False)]
)
async def test_a_command_that_hangs_because_of_a_stuck_trial_leads_to_the_next_rung(
    site: MpsSite,
    stream: Stream,
    home: MpsHome,
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
    restarted: bool,
) -> None:
    """If nothing else is answered either, it is killed; nobody is charged for what that does to the others."""
    monkeypatch.setattr(mps_control.MpsControl.ask, "__defaults__", (1.0,))
    monkeypatch.setattr(mps_ladder, "DRAIN_S", 1.0)
    await site.run(stream, a="card.stick(); wait('never')", deaf=BESIDE)
    before = await home.control.servers()
    home.inject(failure)
    stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
    ends = await site.ends(stream, 2)
    assert {(outcome(end), end.shared_fault) for end in ends.values()} == {NOT_CHARGED}
    assert "the worker restarted the MPS server of its GPU, or killed a client" in ends["deaf"].error
    assert restarted == (not any(map(is_running, before)))


async def test_whole_gpus_on_an_administrators_mps_are_not_charged_for_its_faults(
    tmp_path: Path, scheduler: ScriptedScheduler, home: MpsHome
) -> None:
    home.pipe.mkdir()
    administrators = await asyncio.create_subprocess_exec(BINARY, "-d", env=dict(os.environ))
    assert await administrators.wait() == 0
    site = MpsSite(tmp_path, scheduler, fake_gpus=2)
    try:
        site.start()
        stream = await scheduler.stream()
        for slot, name in enumerate("ab"):
            whole = site.share(name, BESIDE)
            whole.grant.slots[:] = [slot]
            whole.grant.milli = whole.grant.memory_bytes = 0
            stream.send(assign=whole)
            await site.marked(name)
        (server,) = await home.control.servers()
        assert len(await home.control.clients(server)) == 2
        os.kill(server, signal.SIGKILL)
        ends = await site.ends(stream, 2)
        assert {(outcome(end), end.shared_fault) for end in ends.values()} == {COUNTED}
    finally:
        await site.leave()


LEAVES = """
step = 0
def asked():
    return os.path.exists(me.leave_file)
while True:
    card.launch()
    card.sync()
    step += 1
    leave_if_told(report(step, save=asked()))
    time.sleep(0.02)  # a step takes as long as this
"""


async def _lets_continue(stream: Stream) -> None:
    """Answers every report as a scheduler does that knows nothing of MPS."""
    answered = 0
    while True:
        for one in stream.all("report")[answered:]:
            stream.decide(one, event_pb2.DECISION_ACTION_CONTINUE, next_milestone=1_000_000)
            answered += 1
        await asyncio.sleep(0.01)


async def test_the_card_is_drained_before_the_server_is_restarted_for_one_that_cannot_be_taken_off(
    site: MpsSite, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_ladder, "DRAIN_S", 5.0)
    await site.run(stream, a="card.stick(); wait('never')", deaf=BESIDE)
    scheduler = asyncio.create_task(_lets_continue(stream))
    stream.send(assign=site.share("b", LEAVES, attached=True, milestone=1_000_000))
    await site.marked("b")
    await stream.get("report", 2)
    stream.send(cancel={"lease": site.lease("a"), "reason": "stopped"})
    ends = await site.ends(stream, 3)
    scheduler.cancel()
    assert {name: (outcome(end), end.shared_fault) for name, end in ends.items()} == {
        "a": NOT_CHARGED,
        "b": NOT_CHARGED,
        "deaf": NOT_CHARGED,
    }
    assert "the worker restarted the MPS server" in ends["deaf"].error
    assert "cannot be taken off its GPU" in ends["b"].error
    saved = [one for one in stream.all("report") if one.HasField("checkpoint")]
    assert saved, "it saves only when it is asked, and has saved before it was ended"
    await site.run(stream, d="")
    assert outcome((await site.ends(stream, 4))["d"]) == "FINISHED"


async def test_a_trial_that_was_alone_on_the_card_is_charged_for_a_fault(
    site: MpsSite, stream: Stream
) -> None:
    await site.run(stream, a="card.fault(ILLEGAL)")
    (end,) = (await site.ends(stream, 1)).values()
    assert (outcome(end), end.shared_fault) == CHARGED
    assert ILLEGAL in end.device_words


async def test_the_members_of_a_bundle_are_not_charged_for_the_trial_beside_them(
    site: MpsSite, stream: Stream
) -> None:
    program = site.program(PROGRAM + CARD.format(here=str(HERE), name="bundle") + BESIDE, prelude=False)
    for number in (7, 8):
        member = site.assign(program, number=number)
        member.grant.id, member.grant.seats, member.grant.milli = "g1", 4, 500
        site.names[member.lease.lease_id] = f"member {number}"
        stream.send(assign=member)
    await site.marked("bundle")
    await site.run(stream, culprit="card.launch(); os.kill(os.getpid(), 11)")
    ends = await site.ends(stream, 3)
    assert {name: (outcome(end), end.shared_fault) for name, end in ends.items()} == {
        "culprit": CHARGED,
        "member 7": NOT_CHARGED,
        "member 8": NOT_CHARGED,
    }


ILLEGAL = "an illegal memory access was encountered"
