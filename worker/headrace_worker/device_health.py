"""Whether the device failed, and not the program on it.

A GPU with a hardware fault ends whatever runs on it, and the program's last output names the driver's error.
Nobody is charged for such an end: the trial resumes elsewhere from its checkpoint, and the device gets no more
trials. The scheduler remembers that by the device's UUID, until a user clears it (`forgive`). There are two
sources of evidence: the end of the program's output, and what the driver says about the device (NVML).

A failed assertion on the device (`device-side assert triggered`) does not count: the program caused it, most often
with an index out of range. Nor does a lack of memory.

If several devices ran the trial and the driver names none, all of them are taken out of service, because one of
them failed.

Other messages, such as an illegal memory access, may be due to the program or to the device. They prove nothing
alone. This module counts how often in a row attempts on a device ended with them; the scheduler knows whether the
same trials succeed elsewhere, and takes a device out of service after a few.
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
    # The driver or its library says so in its own words. A program's status line counts or denies errors, which
    # does not match: "CUDA device 0, uncorrectable ECC error count: 0", "NVML: no uncorrectable ECC error
    # detected", "GPU is lost: no".
    r"(CUDA|NVML|NVRM|Unable to determine).*(?<!\bno )(?<!\bnot )(?<!\b0 )"
    r"(uncorrectable (ECC|NVLink) error( encountered| detected|['\"]?$)|fallen off the bus|\bGPU is lost\b)"
    r"(?!\s*[:=|?]\s*(no|none|never|false|ok|0)\b)"
    # The hardware errors among the driver's numbered errors: memory, bus, links and firmware.
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
"""This many characters at the end of the output are searched."""


def defect_in(text: str) -> str:
    """The last line that names a failure of a GPU itself, or nothing."""
    return _last_line(_OF_THE_DEVICE, text)


def suspicion_in(text: str) -> str:
    """The last line that names a failure that may be due to a GPU or to the program, or nothing."""
    return _last_line(_PERHAPS_OF_THE_DEVICE, text)


def _last_line(pattern: re.Pattern[str], text: str) -> str:
    lines = text[-_SEARCHED:].splitlines()
    return next((line.strip() for line in reversed(lines) if pattern.search(line)), "")


class DeviceHealth:
    """The devices that have failed since the daemon's start, and those that may have. Safe in any thread."""

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
        """Say which device failure ended a trial on these slots that failed with this output, or nothing."""
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
        """The line of a failed trial's output that may be due to its devices, and how often in a row that has
        happened; or nothing."""
        gpus, said = self._gpus(slots), TROUBLE.kept(suspicion_in(words))
        if not gpus or not said:
            return "", 0
        with self._lock:
            for index in gpus:
                self._in_row[index] = self._in_row.get(index, 0) + 1
            return said, min(self._in_row[index] for index in gpus)

    def ended_well(self, slots: Sequence[int]) -> None:
        """A trial on these slots ended without a failure."""
        with self._lock:
            for index in slots:
                self._in_row.pop(index, None)

    def forgive(self, indices: Sequence[int]) -> None:
        """A user declares these devices healthy again: what was recorded about them is dropped."""
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
