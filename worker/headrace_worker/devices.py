"""What a worker offers: GPUs found through NVML, else CPU slots.

A machine's administrator, or Slurm, limits a process to some GPUs with `CUDA_VISIBLE_DEVICES`; the daemon offers
only those. A trial gets its GPUs by UUID, which is right whatever order CUDA uses.

A GPU that is divided by MIG is offered as its instances, each with its own UUID, memory and name. The driver does not
know how busy an instance is, and reports errors for the GPU that it is a part of: they concern all its instances.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import psutil

from headrace.mps import ComputeMode, is_divided, mode_of
from headrace.v1 import worker_pb2
from headrace_worker import topology
from headrace_worker.xids import Xids

_FAKE_MEMORY_BYTES = 16 << 30


class Devices(Protocol):
    """The slots of a worker, by index."""

    @property
    def devices(self) -> Sequence[worker_pb2.Device]:
        """Every slot, in the order of `index`."""
        ...

    def telemetry(self) -> list[worker_pb2.DeviceTelemetry]:
        """Measures how busy the devices are now; may block for a few milliseconds."""
        ...

    def defects(self) -> dict[int, str]:
        """Which devices failed, by index, in the driver's words; may block for a few milliseconds."""
        ...

    def forgive(self, indices: Sequence[int]) -> None:
        """From now on, only new failures of these devices count; may block for a few milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class CpuSlots:
    """Slots without a device: shares of the machine's cores."""

    devices: tuple[worker_pb2.Device, ...]

    def telemetry(self) -> list[worker_pb2.DeviceTelemetry]:
        """The machine's load, the same for every slot."""
        load = psutil.cpu_percent(None) / 100
        used = psutil.virtual_memory().used // max(len(self.devices), 1)
        return [
            worker_pb2.DeviceTelemetry(index=d.index, utilization=load, memory_used_bytes=used)
            for d in self.devices
        ]

    def defects(self) -> dict[int, str]:
        """CPU slots do not fail."""
        return {}

    def forgive(self, indices: Sequence[int]) -> None:
        """CPU slots have no failures."""


@dataclass(frozen=True, slots=True)
class FakeGpus:
    """Simulated GPUs, for trying out placement on a laptop."""

    devices: tuple[worker_pb2.Device, ...]

    def telemetry(self) -> list[worker_pb2.DeviceTelemetry]:
        """All idle."""
        return [worker_pb2.DeviceTelemetry(index=d.index) for d in self.devices]

    def defects(self) -> dict[int, str]:
        """Simulated GPUs do not fail."""
        return {}

    def forgive(self, indices: Sequence[int]) -> None:
        """Simulated GPUs have no failures."""


@dataclass(frozen=True, slots=True)
class NvmlGpus:
    """The machine's NVIDIA GPUs."""

    devices: tuple[worker_pb2.Device, ...]
    # The GPU of each instance of MIG, by UUID.
    parents: Mapping[str, str] = field(default_factory=dict)
    # The uncorrectable memory errors of each GPU at the start, by UUID: a later one has ended a trial.
    errors_before: dict[str, int] = field(default_factory=dict)
    xids: Xids | None = None

    def telemetry(self) -> list[worker_pb2.DeviceTelemetry]:
        """Asks NVML; leaves out a device that does not answer."""
        import pynvml

        found = []
        for device in self.devices:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
                used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            except pynvml.NVMLError:
                continue
            busy = None
            with suppress(pynvml.NVMLError):  # not supported on some devices, such as instances of MIG
                busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            found.append(
                worker_pb2.DeviceTelemetry(index=device.index, utilization=busy, memory_used_bytes=used)
            )
        return found

    def defects(self) -> dict[int, str]:
        """Asks NVML which devices it has lost, and which have had uncorrectable memory errors since the start."""
        import pynvml

        found = {}
        told = self.xids.look() if self.xids is not None else {}
        for device in self.devices:
            gpu = self.parents.get(device.uuid, device.uuid)
            if gpu in told:
                found[device.index] = told[gpu]
                continue
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
                pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError as error:
                if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND):
                    found[device.index] = f"the driver has lost it: {error}"
                continue
            errors = _errors_now((gpu,)).get(gpu, 0) - self.errors_before.get(gpu, 0)
            if errors > 0:
                found[device.index] = f"{errors} uncorrectable ECC error{'s' * (errors > 1)} (NVML)"
        return found

    def forgive(self, indices: Sequence[int]) -> None:
        """Counts errors of these devices from now on."""
        for device in self.devices:
            if device.index in indices:
                gpu = self.parents.get(device.uuid, device.uuid)
                if self.xids is not None:
                    self.xids.forget(gpu)
                self.errors_before.update(_errors_now((gpu,)))


@dataclass(frozen=True, slots=True)
class Both:
    """GPUs and, because the user asked for them, CPU slots after them."""

    gpus: Devices
    cpus: CpuSlots

    @property
    def devices(self) -> tuple[worker_pb2.Device, ...]:
        """All slots."""
        return (*self.gpus.devices, *self.cpus.devices)

    def telemetry(self) -> list[worker_pb2.DeviceTelemetry]:
        """All measurements."""
        return [*self.gpus.telemetry(), *self.cpus.telemetry()]

    def defects(self) -> dict[int, str]:
        """The failures of the GPUs."""
        return self.gpus.defects()

    def forgive(self, indices: Sequence[int]) -> None:
        """Passes on those that are GPUs."""
        self.gpus.forgive(indices)


def discover(
    *,
    worker: str,
    cpu_slots: int | None = None,
    fake_gpus: int = 0,
    fake_links: str = "",
    bubbles: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Devices:
    """Finds the slots: fake GPUs if asked for, else real ones, else (or in addition, if asked for) CPU slots. With
    `bubbles` there may be none.

    Raises `ValueError` for an invalid number.
    """
    if cpu_slots is not None and cpu_slots < (0 if fake_gpus or bubbles else 1):
        raise ValueError(f"--cpu-slots {cpu_slots}: give at least 1")
    if fake_gpus < 0:
        raise ValueError(f"--fake-gpus {fake_gpus}: give at least 0")
    if fake_links and not fake_gpus:
        raise ValueError("--fake-links: there are no fake GPUs; give --fake-gpus too")
    links = topology.fake_links(fake_gpus, fake_links)
    gpus: Devices = FakeGpus(_fake(worker, fake_gpus, links)) if fake_gpus else _nvidia(environ)
    if not gpus.devices:
        cores = len(os.sched_getaffinity(0))
        return CpuSlots(_cpu(0, cpu_slots if cpu_slots is not None else max(1, cores // 2)))
    if cpu_slots:
        return Both(gpus, CpuSlots(_cpu(len(gpus.devices), cpu_slots)))
    return gpus


def _cpu(first: int, count: int) -> tuple[worker_pb2.Device, ...]:
    memory = psutil.virtual_memory().total // max(count, 1)
    psutil.cpu_percent(None)  # the first call starts the measurement
    return tuple(
        worker_pb2.Device(
            index=first + n,
            kind=worker_pb2.DEVICE_KIND_CPU,
            model="cpu",
            memory_bytes=memory,
            uuid=f"cpu-{n}",
        )
        for n in range(count)
    )


def _fake(worker: str, count: int, links: topology.Links) -> tuple[worker_pb2.Device, ...]:
    return tuple(
        worker_pb2.Device(
            index=n,
            kind=worker_pb2.DEVICE_KIND_GPU,
            model="fake GPU",
            memory_bytes=_FAKE_MEMORY_BYTES,
            uuid=f"GPU-fake-{worker}-{n}",
            links=links[n] if links else (),
        )
        for n in range(count)
    )


def _nvidia(environ: Mapping[str, str]) -> NvmlGpus:
    devices, parents = _nvml(environ)
    if not devices:
        return NvmlGpus(())
    gpus = list(dict.fromkeys(parents.get(device.uuid, device.uuid) for device in devices))
    return NvmlGpus(devices, parents, _errors_now(gpus), Xids(gpus))


def _errors_now(gpus: Iterable[str]) -> dict[str, int]:
    """How many uncorrectable memory errors GPUs have had so far, by UUID."""
    import pynvml

    found = {}
    for uuid in gpus:
        with suppress(pynvml.NVMLError):
            found[uuid] = _uncorrectable_errors(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    return found


def _uncorrectable_errors(handle: object) -> int:
    """How many uncorrectable memory errors a GPU has had since its driver was loaded; 0 if it does not count them."""
    import pynvml

    try:
        return int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    except pynvml.NVMLError:  # not supported on some devices
        return 0


def _nvml(environ: Mapping[str, str]) -> tuple[tuple[worker_pb2.Device, ...], dict[str, str]]:
    """What NVML finds, and the GPU of each instance of MIG."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return (), {}
    except pynvml.NVMLError:  # no driver on this machine
        return (), {}
    found: list[Gpu] = []
    for physical in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(physical)
            parts = _instances(handle) if is_divided(handle) else [handle]
            if mode_of(handle) is ComputeMode.PROHIBITED:
                parts = []
            found.append((_text(pynvml.nvmlDeviceGetUUID(handle)), tuple(map(_offer, parts))))
        except pynvml.NVMLError:  # fell off the bus: not offered
            found.append(("", ()))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    offered = _all(found) if visible is None else _visible(visible, found)
    links = topology.nvml_links([one.uuid for one in offered]) if len(offered) > 1 else [[]]
    parents = {one.uuid: gpu for gpu, parts in found for one in parts if one.uuid != gpu}
    devices = tuple(
        worker_pb2.Device(
            index=n,
            kind=worker_pb2.DEVICE_KIND_GPU,
            model=one.model,
            memory_bytes=one.memory_bytes,
            uuid=one.uuid,
            links=links[n],
            unshared=one.uuid in parents,
        )
        for n, one in enumerate(offered)
    )
    return devices, parents


@dataclass(frozen=True, slots=True)
class Offered:
    """A GPU, or an instance of one, as NVML describes it."""

    uuid: str
    model: str
    memory_bytes: int


Gpu: TypeAlias = tuple[str, tuple[Offered, ...]]
"""A GPU's UUID, and what is offered of it: itself, or its instances; nothing if it cannot be used."""


def _offer(handle: object) -> Offered:
    """Describes a device. Raises `NVMLError`."""
    import pynvml

    return Offered(
        _text(pynvml.nvmlDeviceGetUUID(handle)),
        _text(pynvml.nvmlDeviceGetName(handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _instances(handle: object) -> list[object]:
    """The instances of a GPU that exist. Raises `NVMLError`."""
    import pynvml

    found = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError):  # none with this number
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return found


def _all(gpus: Sequence[Gpu]) -> list[Offered]:
    return [one for _, offered in gpus for one in offered]


def _visible(setting: str, gpus: Sequence[Gpu]) -> list[Offered]:
    """Reads `CUDA_VISIBLE_DEVICES` as CUDA does: indices or UUID prefixes, up to the first entry that is neither. A GPU
    that is divided stands for its instances."""
    named: list[Gpu] = [*gpus, *((one.uuid, (one,)) for one in _all(gpus))]
    chosen: list[Offered] = []
    for item in (part.strip() for part in setting.split(",")):
        if item.isdecimal() and int(item) < len(gpus):
            chosen += gpus[int(item)][1]
        elif item and (matches := [offered for uuid, offered in named if uuid.startswith(item)]):
            chosen += matches[0]
        else:
            break
    return list(dict.fromkeys(chosen))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
