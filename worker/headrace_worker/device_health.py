"""Whether it was the device that failed, and not the program on it.

A GPU with a hardware fault ends whatever runs on it, and the program's last words name the driver's error. Such an end
is charged to nobody: the trial goes on elsewhere from its checkpoint, and the device gets no more trials. The scheduler
remembers that by the device's UUID, until a user takes it back (`forgive`). Two witnesses count: what the program
printed last, and what the driver says of the device (NVML).

A failed assertion on the device (`device-side assert triggered`) is no such end: the program made it, most often by an
index out of range. Nor is want of memory.

Where several devices ran the trial and the driver names none, all of them are taken out: one of them failed.

Other words may be the program's doing or the device's, such as an illegal memory access. They prove nothing alone.
Here it is counted how often in a row attempts on a device ended with them; the scheduler knows whether the same trials
get on elsewhere, and takes a device out after a few.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from headrace.bounds.sessions import TROUBLE
from headrace.v1 import worker_pb2
from headrace_worker.devices import Devices
from headrace_worker.xids import OF_THE_HARDWARE

log = logging.getLogger(__name__)

_OF_THE_DEVICE = re.compile(
    # The driver or its library says so in its own words. A status line of the program counts errors, or denies them:
    # "CUDA device 0, uncorrectable ECC error count: 0", "NVML: no uncorrectable ECC error detected", "GPU is lost: no".
    r"(CUDA|NVML|NVRM|Unable to determine).*(?<!\bno )(?<!\bnot )(?<!\b0 )"
    r"(uncorrectable (ECC|NVLink) error( encountered| detected|['\"]?$)|fallen off the bus|\bGPU is lost\b)"
    r"(?!\s*[:=|?]\s*(no|none|never|false|ok|0)\b)"
    # Of the driver's numbered errors, those of the hardware: memory, bus, links and firmware.
    rf"|\bXid \([^)]{{0,60}}\): ({'|'.join(map(str, OF_THE_HARDWARE))})\b",
    re.IGNORECASE,
)
_PERHAPS_OF_THE_DEVICE = re.compile(
    r"CUDA (error|failure)\b.*(illegal memory access|unspecified launch failure|misaligned address|illegal instruction"
    r"|invalid program counter|hardware stack error|invalid address space|unknown error|launch timed out)"
    r"|\bCU(DNN|BLAS)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)\b",
    re.IGNORECASE,
)
_SEARCHED = 8192
"""So many characters of the last output are searched."""


def defect_in(text: str) -> str:
    """The last line that names a failure of a GPU itself, or nothing."""
    return _last_line(_OF_THE_DEVICE, text)


def suspicion_in(text: str) -> str:
    """The last line that names a failure which may be a GPU's or the program's, or nothing."""
    return _last_line(_PERHAPS_OF_THE_DEVICE, text)


def _last_line(pattern: re.Pattern[str], text: str) -> str:
    lines = text[-_SEARCHED:].splitlines()
    return next((line.strip() for line in reversed(lines) if pattern.search(line)), "")


class DeviceHealth:
    """The devices that failed since the daemon's start, and those that may have. For any thread."""

    def __init__(self, devices: Devices, changed: Callable[[], object] = lambda: None) -> None:
        self._devices = devices
        self._changed = changed
        self._lock = Lock()
        self._defects: dict[int, str] = {}
        self._in_row: dict[int, int] = {}

    @property
    def defects(self) -> Mapping[int, str]:
        """Why nothing may be placed on them, by slot."""
        return dict(self._defects)

    def look(self) -> None:
        """Ask the driver about all devices."""
        self._note(self._devices.defects())

    def judge(self, slots: Sequence[int], words: str) -> str:
        """Say which failure of a device ended a trial on these slots that failed with these words, or nothing."""
        gpus = self._gpus(slots)
        if not gpus:
            return ""
        said = TROUBLE.kept(defect_in(words))
        if not said or len(gpus) > 1:
            self.look()
        known = [f"slot {index}: {self._defects[index]}" for index in gpus if index in self._defects]
        if known:
            return "; ".join(known)
        if said:
            others = f" (one of slots {', '.join(map(str, gpus))})" if len(gpus) > 1 else ""
            self._note(dict.fromkeys(gpus, said + others))
        return said

    def suspect(self, slots: Sequence[int], words: str) -> tuple[str, int]:
        """What a failed trial's words say that may be its devices' doing, and how often in a row that was so; or
        nothing."""
        gpus, said = self._gpus(slots), TROUBLE.kept(suspicion_in(words))
        if not gpus or not said:
            return "", 0
        with self._lock:
            for index in gpus:
                self._in_row[index] = self._in_row.get(index, 0) + 1
            return said, min(self._in_row[index] for index in gpus)

    def ended_well(self, slots: Sequence[int]) -> None:
        """A trial on these slots ended in good order."""
        with self._lock:
            for index in slots:
                self._in_row.pop(index, None)

    def forgive(self, indices: Sequence[int]) -> None:
        """A user takes these devices for sound again: what is known of them is void."""
        with self._lock:
            for index in indices:
                self._defects.pop(index, None)
                self._in_row.pop(index, None)
        self._devices.forgive(indices)
        log.info("slots %s are in use again", list(indices))
        self._changed()

    def _gpus(self, slots: Sequence[int]) -> list[int]:
        return [
            device.index
            for device in self._devices.devices
            if device.index in slots and device.kind == worker_pb2.DEVICE_KIND_GPU
        ]

    def _note(self, found: Mapping[int, str]) -> None:
        with self._lock:
            new = {index: why for index, why in found.items() if index not in self._defects}
            self._defects |= new
        for index, why in new.items():
            log.error("slot %d gets no more trials: its device failed: %s", index, why)
        if new:
            self._changed()
