"""A GPU that fails is taken out of service, and its trial is not charged. Faults of the program stay its own."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_scheduler import ScriptedScheduler
from worker_site import Site

from headrace.v1 import worker_pb2
from headrace_worker.device_health import DeviceHealth, defect_in
from headrace_worker.devices import discover

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
# What torch prints after it.
ADVICE = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
LOST_GPU = 0xF


@pytest.mark.parametrize(
    "line",
    [
        ECC,
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.  Reboot the system",
        "NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.",
        "ncclUnhandledCudaError: Cuda failure 'uncorrectable ECC error encountered'",
        "CUDA error: uncorrectable ECC error",
        "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:86:00): 79, pid=1234, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:86:00): 48, DBE (double bit error) ECC Error",
    ],
)
def test_the_driver_s_words_for_a_failed_device(line: str) -> None:
    assert defect_in(f"epoch 1\n{line}\n{ADVICE}\n") == line


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:86:00): 31, pid=1234, MMU Fault",
        "ValueError: ECC",
        "DCGM: uncorrectable ECC errors: 0",
        "CUDA 13.0, uncorrectable ECC errors: 0",
        "| 0 GPU is lost: no |",
        "CUDA device 0: uncorrectable ECC error count: 0",
        "CUDA device 0: uncorrectable ECC error count: 3",
        "NVML: uncorrectable ECC error(s): 0",
        "NVML health: no uncorrectable ECC error detected",
        "CUDA check: 0 uncorrectable ECC error encountered",
        "CUDA check: uncorrectable ECC error encountered: 0",
        "NVML | GPU is lost: no | temperature: 40",
        "NVRM watch: has not fallen off the bus",
        "CUDA 13.0, Xid errors seen so far: 48",
    ],
)
def test_what_the_program_did_itself(line: str) -> None:
    assert defect_in(f"{line}\n{ADVICE}\n") == ""


class FakeNvml(SimpleNamespace):
    """NVML's answers for two GPUs."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__("GPU is lost" if value == LOST_GPU else "not supported")
            self.value = value

    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_FOUND = LOST_GPU, 6
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0

    def __init__(self) -> None:
        super().__init__(errors={"GPU-0": 3, "GPU-1": 0}, gone=set())

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"fake {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if handle in self.gone:
            raise self.NVMLError(LOST_GPU)
        return SimpleNamespace(total=1 << 30, used=0)

    NVML_P2P_CAPS_INDEX_NVLINK = 2

    def nvmlDeviceGetP2PStatus(self, *_: object) -> int:
        raise self.NVMLError(3)

    def nvmlDeviceGetTopologyCommonAncestor(self, *_: object) -> int:
        raise self.NVMLError(3)

    def nvmlDeviceGetTotalEccErrors(self, handle: str, *_: int) -> int:
        return int(self.errors[handle])


def test_the_driver_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    changes: list[str] = []
    health = DeviceHealth(discover(worker="w", environ={}), changed=lambda: changes.append("changed"))
    assert health.judge([0, 1], "ValueError: boom") == ""
    assert not health.defects, "errors from before the start count against nobody"
    nvml.errors["GPU-0"] = 4
    said = health.judge([0, 1], ECC)
    assert said == "slot 0: 1 uncorrectable ECC error (NVML)"
    assert set(health.defects) == {0}, "the driver named one of the two"
    nvml.gone.add("GPU-1")
    health.look()
    assert "the driver has lost it: GPU is lost" in health.defects[1]
    assert changes == ["changed"] * 2


def test_where_the_driver_names_none_all_devices_of_the_trial_are_taken_out() -> None:
    health = DeviceHealth(discover(worker="w", fake_gpus=3))
    assert health.judge([0, 2], f"{ECC}\n{ADVICE}") == ECC
    assert dict(health.defects) == dict.fromkeys((0, 2), f"{ECC} (one of slots 0, 2)")
    cpu = DeviceHealth(discover(worker="w", cpu_slots=1))
    assert cpu.judge([0], ECC) == "", "a CPU slot has no such device"


async def _failing(site: Site, scheduler: ScriptedScheduler, line: str) -> tuple[Any, Any]:
    site.fake_gpus, site.cpu_slots = 2, None
    site.start()
    stream = await scheduler.stream()
    body = f"print({line!r})\nprint({ADVICE!r})\nsys.exit(1)"
    assign = site.assign(site.program(body), slots=(1,))
    stream.send(assign=assign)
    return stream, await stream.get("exited")


async def test_a_device_that_fails_is_named_before_its_trial_s_end(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    stream, exited = await _failing(site, scheduler, ECC)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_LOST
    assert exited.error.startswith(f"its device failed: {ECC}; the program said: exit status 1")
    order = [m.WhichOneof("message") for m in stream.received]
    named = next(n for n, m in enumerate(stream.received) if m.heartbeat.defects)
    assert named < order.index("exited")
    (defect,) = stream.received[named].heartbeat.defects
    assert (defect.index, defect.reason) == (1, ECC)
    stream.close()
    again = (await scheduler.stream(2)).hello
    assert [device.defect for device in again.devices] == ["", ECC]
    await site.stop()
    site.start()
    fresh = (await scheduler.stream(len(scheduler.streams) + 1)).hello
    assert [device.defect for device in fresh.devices] == ["", ""], "a restart brings it back"
    assert fresh.home == again.home


async def test_an_assertion_on_the_device_is_the_program_s_own(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    stream, exited = await _failing(site, scheduler, "RuntimeError: CUDA error: device-side assert triggered")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    assert not any(beat.defects for beat in stream.all("heartbeat"))
