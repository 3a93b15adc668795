"""The daemon's parts in isolation: devices, slots, exits, backoff, launches, logs, the outbox, the session core."""

import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from headrace.bounds.sessions import LOG_TAIL
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2, worker_pb2
from headrace_worker.attempt import Attempt
from headrace_worker.backoff import Backoff
from headrace_worker.devices import discover
from headrace_worker.effects import Start
from headrace_worker.exits import Ending, Finished, classify, for_all
from headrace_worker.launch import folder_of, launch_of, log_path
from headrace_worker.logs import AttemptLog, last_line
from headrace_worker.outbox import Outbox
from headrace_worker.session import turns_after
from headrace_worker.session_core import Identity, SessionCore, SessionProtocolError
from headrace_worker.slots import Slots

GIB = 1 << 30
FINISHED = worker_pb2.EXIT_OUTCOME_FINISHED
RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED
FAILED = worker_pb2.EXIT_OUTCOME_FAILED
LOST = worker_pb2.EXIT_OUTCOME_LOST
UNREACHED = worker_pb2.EXIT_OUTCOME_UNREACHED


class FakeNvml(ModuleType):
    """A driver with three GPUs, the last of which fell off the bus."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.driver = driver

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid[-1])

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-aaa{handle}".encode()

    def nvmlDeviceGetName(self, _: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=140 * GIB, used=(handle + 1) * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=50)

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0
    NVML_TOPOLOGY_MULTIPLE, NVML_TOPOLOGY_NODE = 20, 40
    nvlinks: frozenset[frozenset[int]] = frozenset()
    ancestors: Mapping[frozenset[int], int] = MappingProxyType({})

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if frozenset((one, other)) in self.nvlinks else 3

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        if frozenset((one, other)) not in self.ancestors:
            raise self.NVMLError("Not Supported")
        return self.ancestors[frozenset((one, other))]

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0

    def nvmlDeviceGetTotalEccErrors(self, *_: int) -> int:
        raise self.NVMLError("Not Supported")


def test_gpus_are_found_with_their_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = discover(worker="w", environ={})
    assert [(d.index, d.kind, d.model, d.memory_bytes, d.uuid) for d in found.devices] == [
        (0, worker_pb2.DEVICE_KIND_GPU, "NVIDIA H200", 140 * GIB, "GPU-aaa0"),
        (1, worker_pb2.DEVICE_KIND_GPU, "NVIDIA H200", 140 * GIB, "GPU-aaa1"),
    ]
    assert [
        (t.index, t.utilization if t.HasField("utilization") else None, t.memory_used_bytes)
        for t in found.telemetry()
    ] == [(0, 0.5, GIB), (1, None, 2 * GIB)]


class DividedNvml(FakeNvml):
    """A GPU that is divided, one that could be, and one that is divided into nothing."""

    NVML_DEVICE_MIG_ENABLE = 1
    INSTANCES = {0: ("1g.10gb", "3g.40gb"), 2: ()}  # noqa: RUF012  # never changed

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(handle in self.INSTANCES), 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, _: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, number: int) -> int:
        if number % 2 == 0 or number // 2 >= len(self.INSTANCES[handle]):
            raise self.NVMLError("Not Found")
        return 10 * (handle + 1) + number // 2

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.rpartition("-")[2])

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"{'MIG' if handle >= 10 else 'GPU'}-{handle}".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100" + (
            f" MIG {self.INSTANCES[handle // 10 - 1][handle % 10]}" if handle >= 10 else ""
        )

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle >= 10:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, *_: int) -> int:
        if handle >= 10:
            raise self.NVMLError("Not Supported")
        return self.errors if handle == 0 else 0

    errors = 0


def test_a_divided_gpu_is_offered_as_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = DividedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = discover(worker="w", environ={})
    assert [(d.index, d.model, d.uuid) for d in found.devices] == [
        (0, "NVIDIA H100 MIG 1g.10gb", "MIG-10"),
        (1, "NVIDIA H100 MIG 3g.40gb", "MIG-11"),
        (2, "NVIDIA H100", "GPU-1"),
    ]
    assert [t.HasField("utilization") for t in found.telemetry()] == [False, False, True]
    assert found.defects() == {}
    nvml.errors = 1
    assert set(found.defects()) == {0, 1}, "the driver counts for the whole GPU"
    found.forgive([0])
    assert found.defects() == {}


@pytest.mark.parametrize(
    ("visible", "offered"),
    [
        ("MIG-11", ["MIG-11"]),
        ("0", ["MIG-10", "MIG-11"]),
        ("1,GPU-0", ["GPU-1", "MIG-10", "MIG-11"]),
        ("MIG-11,0", ["MIG-11", "MIG-10"]),
        ("2,1", ["GPU-1"]),
        ("MIG-7,1", []),
    ],
)
def test_visible_devices_may_name_instances(
    monkeypatch: pytest.MonkeyPatch, visible: str, offered: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", DividedNvml())
    found = discover(worker="w", environ={"CUDA_VISIBLE_DEVICES": visible}).devices
    assert [d.uuid for d in found if d.kind == worker_pb2.DEVICE_KIND_GPU] == offered


class JoinedNvml(FakeNvml):
    """Six GPUs: two with NVLink, one at their switch, one at their CPU, one at another CPU; the last is unknown."""

    nvlinks = frozenset({frozenset((0, 1))})
    ancestors = {  # noqa: RUF012  # never changed
        frozenset((one, other)): level
        for one, other, level in (
            *((0, 1, 40), (0, 2, 20), (1, 2, 10), (0, 3, 30), (1, 3, 40), (2, 3, 40)),
            *((0, 4, 50), (1, 4, 50), (2, 4, 50), (3, 4, 50)),
        )
    }

    def nvmlDeviceGetCount(self) -> int:
        return 6

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index


def test_the_driver_says_how_gpus_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", JoinedNvml())
    unknown, nvlink, switch, node, machine = range(5)
    links = [list(d.links) for d in discover(worker="w", environ={}).devices]
    assert links[0] == [unknown, nvlink, switch, node, machine, unknown]
    assert links[2] == [switch, switch, unknown, node, machine, unknown]
    assert links[5] == [unknown] * 6
    some = discover(worker="w", environ={"CUDA_VISIBLE_DEVICES": "4,1,0"}).devices
    assert [list(d.links) for d in some] == [
        [0, machine, machine],
        [machine, 0, nvlink],
        [machine, nvlink, 0],
    ]


def test_fake_gpus_may_be_joined() -> None:
    found = discover(worker="w", fake_gpus=4, fake_links="nvlink:2,numa:3").devices
    assert [list(d.links) for d in found] == [[0, 1, 3, 4], [1, 0, 3, 4], [3, 3, 0, 1], [4, 4, 1, 0]]
    assert [list(d.links) for d in discover(worker="w", fake_gpus=2).devices] == [[], []]


@pytest.mark.parametrize("text", ["nvlink", "nvlink:0", "ring:2", "nvlink:2,nvlink:4", "nvlink:2;numa:4"])
def test_fake_joints_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--fake-links .*give islands of GPUs such as nvlink:2,numa:4"):
        discover(worker="w", fake_gpus=4, fake_links=text)
    with pytest.raises(ValueError, match="there are no fake GPUs"):
        discover(worker="w", fake_links="nvlink:2")


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", ["GPU-aaa1"]),
        ("1,0", ["GPU-aaa1", "GPU-aaa0"]),
        ("GPU-aaa1", ["GPU-aaa1"]),
        ("0,9,1", ["GPU-aaa0"]),
    ],
)
def test_only_visible_gpus_are_offered(
    monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = discover(worker="w", environ={"CUDA_VISIBLE_DEVICES": visible})
    assert [d.uuid for d in found.devices] == uuids


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_cpu_slots_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=bool(environ)))
    assert len(discover(worker="w", environ=environ).devices) >= 1
    found = discover(worker="w", cpu_slots=3, environ=environ)
    assert [d.kind for d in found.devices] == [worker_pb2.DEVICE_KIND_CPU] * 3
    assert all(0 <= t.utilization <= 1 and t.memory_used_bytes > 0 for t in found.telemetry())


def test_cpu_slots_beside_gpus_only_if_asked_for() -> None:
    assert len(discover(worker="w", fake_gpus=2).devices) == 2
    both = discover(worker="w", fake_gpus=2, cpu_slots=1)
    assert [(d.index, d.kind) for d in both.devices] == [
        (0, worker_pb2.DEVICE_KIND_GPU),
        (1, worker_pb2.DEVICE_KIND_GPU),
        (2, worker_pb2.DEVICE_KIND_CPU),
    ]
    assert [t.index for t in both.telemetry()] == [0, 1, 2]
    with pytest.raises(ValueError, match="--cpu-slots 0"):
        discover(worker="w", cpu_slots=0)


def test_gangs_and_singles_take_turns_in_the_order_of_their_assigns() -> None:
    slots = Slots(2)
    first, gang, last = slots.join([1]), slots.join([0, 1]), slots.join([0])
    called = [first.called.is_set(), gang.called.is_set(), last.called.is_set()]
    assert called == [True, False, False], "the last waits behind the gang, or the gang would starve"
    first.leave()
    first.leave()
    assert gang.called.is_set()
    assert not last.called.is_set()
    gang.leave()
    assert last.called.is_set()
    with pytest.raises(ValueError, match="no slot"):
        slots.join([])


@pytest.mark.parametrize(
    ("code", "ending", "finished", "outcome", "error"),
    [
        (0, None, None, FINISHED, ""),
        (0, None, Finished(), FINISHED, ""),
        (-signal.SIGSEGV, None, Finished(), FINISHED, ""),
        (1, None, Finished(error="ValueError: x"), FAILED, "ValueError: x"),
        (0, None, Finished(error="a\x00b"), FAILED, "a\ufffdb"),
        (2, None, None, FAILED, "exit status 2; last output: the last line"),
        (75, None, None, LOST, "it could not reach its worker (exit status 75)"),
        (-signal.SIGKILL, None, None, LOST, "killed by SIGKILL"),
        (-signal.SIGTERM, None, None, LOST, "killed by SIGTERM"),
        (-signal.SIGHUP, None, None, LOST, "killed by SIGHUP"),
        (-signal.SIGBUS, None, None, FAILED, "killed by SIGBUS"),
        (137, None, None, LOST, "a process that it started was killed by SIGKILL (exit status 137)"),
        (
            137,
            None,
            Finished(exiting=True),
            LOST,
            "a process that it started was killed by SIGKILL (exit status 137)",
        ),
        (137, None, Finished(), FINISHED, ""),
        (139, None, None, FAILED, "exit status 139; last output: the last line"),
        (-40, None, None, FAILED, "killed by signal 40"),
        (-signal.SIGKILL, Ending(outcome=RELEASED), None, RELEASED, ""),
        (1, Ending(outcome=RELEASED), Finished(error="KeyboardInterrupt"), RELEASED, ""),
        (1, Ending(outcome=RELEASED, decided=True), Finished(error="ValueError: x"), FAILED, "ValueError: x"),
        (
            3,
            Ending(outcome=RELEASED, decided=True),
            None,
            FAILED,
            "exit status 3; last output: the last line",
        ),
        (0, Ending(outcome=RELEASED, decided=True), None, RELEASED, ""),
        (-signal.SIGTERM, Ending(outcome=RELEASED, decided=True), None, RELEASED, ""),
        (0, Ending(outcome=LOST, error="stopped"), None, LOST, "stopped"),
        (0, Ending(outcome=LOST, error="stopped"), Finished(), FINISHED, ""),
        (-signal.SIGKILL, Ending(outcome=FAILED, error="silent"), None, FAILED, "silent"),
    ],
)
def test_exits(
    code: int,
    ending: Ending | None,
    finished: Finished | None,
    outcome: worker_pb2.ExitOutcome.ValueType,
    error: str,
) -> None:
    verdict = classify(code, ending=ending, finished=finished, last_line="the last line")
    assert (verdict.outcome, verdict.error, verdict.exit_code) == (outcome, error, code)


@pytest.mark.parametrize(
    ("signalled", "finished", "outcome", "error"),
    [
        (False, None, LOST, "killed by SIGKILL"),
        (True, None, RELEASED, ""),
        (False, Finished(), RELEASED, ""),
    ],
)
def test_a_program_that_somebody_else_kills_behind_a_decision_was_not_ended_by_its_worker(
    *, signalled: bool, finished: Finished | None, outcome: worker_pb2.ExitOutcome.ValueType, error: str
) -> None:
    ending = Ending(outcome=RELEASED, decided=True)
    verdict = classify(-9, ending=ending, finished=finished, last_line="", signalled=signalled)
    assert (verdict.outcome, verdict.error) == (outcome, error)


@pytest.mark.parametrize(
    ("code", "waited_s", "outcome"),
    [
        (75, 15.2, UNREACHED),
        (75, 0.3, LOST),  # a script's own exit: nothing was tried
        (75, 0.0, LOST),  # it had its configuration, and lost its worker later
        (1, 15.2, FAILED),
    ],
)
def test_a_program_that_never_got_through_was_not_reached(
    code: int, waited_s: float, outcome: worker_pb2.ExitOutcome.ValueType
) -> None:
    verdict = classify(code, ending=None, finished=None, last_line="", waited_s=waited_s)
    assert verdict.outcome == outcome
    assert for_all(verdict, members=3, out_of_memory=False).outcome == (
        LOST if outcome == FAILED else outcome
    ), "of a bundle each member was"


@pytest.mark.parametrize(
    ("said", "outcome", "error"),
    [
        (["ValueError: boom", "RuntimeError: Connection closed by peer"], FAILED, "ValueError: boom"),
        (["", "RuntimeError: at teardown"], FINISHED, ""),
    ],
    ids=["ranks of a gang", "teardown"],
)
def test_the_first_report_of_a_programs_end_counts(
    tmp_path: Path, said: list[str], outcome: worker_pb2.ExitOutcome.ValueType, error: str
) -> None:
    place: Any = MagicMock(scratch_dir=tmp_path, taken_dir=tmp_path)
    host = MagicMock()
    attempt = Attempt(_assign(), host, place)
    for rank, word in enumerate(said):
        attempt.finish(runtime_pb2.FinishRequest(error=word, rank=rank))
    verdict = classify(1, ending=None, finished=attempt.finished, last_line="")
    assert (verdict.outcome, verdict.error) == (outcome, error)
    host.finished.assert_called_once_with(attempt)


def test_backoff_doubles_up_to_its_cap_with_full_jitter() -> None:
    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0.0
            return b

    backoff = Backoff(base_s=1.0, cap_s=5.0, rng=Highest())
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.succeeded()
    assert backoff.next_s() == 1.0


def _assign(**template: Any) -> worker_pb2.Assign:
    return worker_pb2.Assign(
        lease=event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/4"),
        template=spec_pb2.TrialTemplate(working_dir="/", **template),
        parameters=spec_pb2.ParameterAssignment(
            values={
                "lr": spec_pb2.ParameterValue(float_value=0.1),
                "nesterov": spec_pb2.ParameterValue(bool_value=True),
            }
        ),
        seed=7,
        grant=worker_pb2.Grant(slots=[1]),
    )


def test_placeholders_are_filled_in() -> None:
    args = ["python", "t.py", "--lr={lr}", "--n={nesterov}", "{trial}", "{seed}", "--m={momentum}", "{{x}}"]
    assign = _assign(command=spec_pb2.CommandLine(args=args))
    launch = launch_of(assign, devices=(), runtime="unix:/s", log_dir=Path("/logs"), environ={})
    assert launch.args == ("python", "t.py", "--lr=0.1", "--n=true", "4", "7", "{x}")
    assert launch.log_path == Path("/logs/s/4.log")


def test_the_environment_isolates_the_trial() -> None:
    devices = discover(worker="w", fake_gpus=2).devices
    launch = launch_of(
        _assign(callable="m:f", env={"A": "2", "CUDA_VISIBLE_DEVICES": "all"}),
        devices=devices,
        runtime="unix:/s",
        log_dir=Path("/logs"),
        environ={"A": "1", "PATH": "/bin", "HEADRACE_DATABASE_URL": "secret"},
    )
    assert launch.args == (sys.executable, "-m", "headrace.trial.process")
    assert dict(launch.env) == {
        "A": "2",
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "HEADRACE_RUNTIME": "unix:/s",
        "HEADRACE_LEASE_ID": "l",
        "HEADRACE_TRIAL": "studies/s/trials/4",
        "CUDA_VISIBLE_DEVICES": "GPU-fake-w-1",
        "HEADRACE_WORLD_SIZE": "1",
        "HEADRACE_CPUS": "1",
    }


def test_trial_names_do_not_lead_out_of_the_log_folder() -> None:
    for trial in ("studies/../trials/1", "studies/a/b/trials/1", "studies/s/trials/x", ""):
        assign = worker_pb2.Assign(lease=event_pb2.LeaseRef(trial=trial))
        with pytest.raises(ValueError, match="is not of the form"):
            log_path(Path("/logs"), assign)
    assign = worker_pb2.Assign(lease=event_pb2.LeaseRef(trial="studies/s/trials/1"), study_uid="../x")
    with pytest.raises(ValueError, match="is not made of letters and digits"):
        folder_of(assign)


def test_logs_and_checkpoints_lie_under_the_uid_of_the_study() -> None:
    assign = _assign()
    assign.study_uid = "3f2a"
    assert log_path(Path("/logs"), assign) == Path("/logs/s-3f2a/4.log")
    assert folder_of(assign) == "studies/s-3f2a/trials/4"


def test_a_log_tail_is_short_clean_and_of_this_attempt_only(tmp_path: Path) -> None:
    for output, expected in [(b"first\n", "first\n"), (b"a\x00b\xff\n\n", "a\ufffdb\ufffd\n\n"), (b"", "")]:
        log = AttemptLog.open(tmp_path / "s/1.log", "attempt")
        log.file.write(output)
        assert log.tail() == expected
        log.close()
    log = AttemptLog.open(tmp_path / "s/1.log", "attempt")
    log.file.write("ü".encode() * 9000)
    assert len(log.tail()) <= LOG_TAIL.longest
    log.close()
    assert (tmp_path / "s/1.log").read_bytes().count(b"==== attempt ====") == 4
    assert last_line("a\nb\n\n") == "b"


def _request(step: int) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(report=worker_pb2.Report(step=step))


def test_the_count_of_messages_survives_restarts_and_deletions(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    assert [outbox.append("l", _request(n)) for n in range(3)] == [1, 2, 3]
    outbox.delete([1, 2, 3, 99])
    outbox.close()
    outbox = Outbox(tmp_path / "outbox.sqlite")
    assert outbox.after(0, 10) == []
    assert outbox.append("l", _request(3)) == 4
    (entry,) = outbox.after(0, 10)
    assert (entry.sequence, entry.lease_id, entry.request.report.sequence) == (4, "l", 4)
    outbox.close()


def test_an_upload_ends_with_its_report_and_a_lease_with_its_exit(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    ref = event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0", attempt=3)
    outbox.hold(ref)
    outbox.hold(ref)
    outbox.started("l", 77, 1.5)
    outbox.begin_upload("file:///a/", "l")
    outbox.begin_upload("file:///b/", "l")
    outbox.append("l", _request(1), upload="file:///a/")
    assert outbox.uploads() == ["file:///b/"]
    (recorded,) = outbox.leases()
    assert (recorded.lease, recorded.pid, recorded.started) == (ref, 77, 1.5)
    outbox.append_exit("l", worker_pb2.SessionRequest(exited=worker_pb2.Exited(lease=ref)))
    assert outbox.leases() == []
    outbox.close()


def _core() -> SessionCore:
    core = SessionCore(Identity(worker="w", incarnation="i", devices=(), labels={}, version="", log_dir="/"))
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    return core


def _grant(core: SessionCore, lease_id: str, slot: int) -> None:
    assign = worker_pb2.Assign(
        lease=event_pb2.LeaseRef(lease_id=lease_id), grant=worker_pb2.Grant(slots=[slot])
    )
    assert core.receive(worker_pb2.SessionResponse(assign=assign)) == [Start(assign=assign)]


def _tick(core: SessionCore) -> str:
    """A heartbeat interval in which the scheduler answers."""
    core.receive(worker_pb2.SessionResponse(ack=worker_pb2.Ack(heartbeat=1)))
    return core.tick()


def test_two_leases_on_one_slot_reopen_the_session_less_and_less_often() -> None:
    core = _core()
    _grant(core, "a", 0)
    _grant(core, "b", 1)
    assert [_tick(core) for _ in range(9)] == [""] * 9
    _grant(core, "c", 0)
    reasons = [_tick(core) for _ in range(10)]
    assert [bool(reason) for reason in reasons] == [False, False, True, *[False] * 5, True, False]
    assert "lease c waits for a slot that another lease holds" in reasons
    core.releasing("a")
    assert [_tick(core) for _ in range(30)] == [""] * 30


def test_a_scheduler_that_breaks_the_protocol_is_left() -> None:
    core = _core()
    with pytest.raises(SessionProtocolError, match="a second Welcome"):
        core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    core.disconnect()
    core.connect()
    with pytest.raises(SessionProtocolError, match="ack before Welcome"):
        core.receive(worker_pb2.SessionResponse(ack=worker_pb2.Ack(sequences=[1])))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_address_has_its_turn_and_the_one_just_left_comes_last(count: int) -> None:
    addresses = [f"scheduler-{n}:7440" for n in range(count)]
    for lost in addresses:
        turns = turns_after(addresses, lost)
        assert sorted(turns) == sorted(addresses)
        assert turns[-1] == lost
    assert sorted(turns_after(addresses)) == sorted(addresses)


def test_workers_that_lose_a_replica_spread_over_the_others() -> None:
    first = Counter(turns_after(["a", "b", "c"], "a")[0] for _ in range(300))
    assert min(first["b"], first["c"]) > 90, first
    assert first["a"] == 0
