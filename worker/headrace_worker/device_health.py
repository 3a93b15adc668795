"""Whether it was the device that failed, and not the program on it.

A GPU with a hardware fault ends whatever runs on it, and the program's last words name the driver's error. Such an end
is charged to nobody: the trial goes on elsewhere from its checkpoint, and the device gets no more trials until the
daemon starts again. Two witnesses count: what the program printed last, and what the driver says of the device (NVML).

A failed assertion on the device (`device-side assert triggered`) is no such end: the program made it, most often by an
index out of range. Nor is want of memory.

Where several devices ran the trial and the driver names none, all of them are taken out: one of them failed.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from headrace.bounds.sessions import TROUBLE
from headrace.v1 import worker_pb2
from headrace_worker.devices import Devices

log = logging.getLogger(__name__)

_OF_THE_DEVICE = re.compile(
    # The driver or its library says so in its own words. A status line of the program counts errors, or denies them:
    # "CUDA device 0, uncorrectable ECC error count: 0", "NVML: no uncorrectable ECC error detected", "GPU is lost: no".
    r"(CUDA|NVML|NVRM|Unable to determine).*(?<!\bno )(?<!\bnot )(?<!\b0 )"
    r"(uncorrectable (ECC|NVLink) error( encountered| detected|['\"]?$)|fallen off the bus|\bGPU is lost\b)"
    r"(?!\s*[:=|?]\s*(no|none|never|false|ok|0)\b)"
    # Of the driver's numbered errors, those of the hardware: memory, bus, links and firmware.
    r"|\bXid \([^)]{0,60}\): (48|62|64|74|79|94|95|119|120)\b",
    re.IGNORECASE,
)
_SEARCHED = 8192
"""So many characters of the last output are searched."""


def defect_in(text: str) -> str:
    """The last line that names a failure of a GPU itself, or nothing."""
    lines = text[-_SEARCHED:].splitlines()
    return next((line.strip() for line in reversed(lines) if _OF_THE_DEVICE.search(line)), "")


class DeviceHealth:
    """The devices that failed since the daemon's start. For any thread."""

    def __init__(self, devices: Devices, changed: Callable[[], object] = lambda: None) -> None:
        self._devices = devices
        self._changed = changed
        self._lock = Lock()
        self._defects: dict[int, str] = {}

    @property
    def defects(self) -> Mapping[int, str]:
        """Why nothing may be placed on them, by slot."""
        return dict(self._defects)

    def look(self) -> None:
        """Ask the driver about all devices."""
        self._note(self._devices.defects())

    def judge(self, slots: Sequence[int], words: str) -> str:
        """Say which failure of a device ended a trial on these slots that failed with these words, or nothing."""
        gpus = [
            device.index
            for device in self._devices.devices
            if device.index in slots and device.kind == worker_pb2.DEVICE_KIND_GPU
        ]
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

    def _note(self, found: Mapping[int, str]) -> None:
        with self._lock:
            new = {index: why for index, why in found.items() if index not in self._defects}
            self._defects |= new
        for index, why in new.items():
            log.error("slot %d gets no more trials, its device failed: %s", index, why)
        if new:
            self._changed()
