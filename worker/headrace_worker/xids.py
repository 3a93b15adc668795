"""The driver's numbered errors (Xid): which of them are hardware errors, and those that NVML reports as they
happen.

Source: NVIDIA, "Xid Errors", the catalogue of the driver. An Xid that a program can cause, such as 31 (a page
fault) or 43 (it was stopped), says nothing about the device.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

log = logging.getLogger(__name__)

OF_THE_HARDWARE: Final = {
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "ECC row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP RPC timeout",
    120: "GSP error",
}
_AT_ONCE = 256


class Xids:
    """The hardware errors that NVML has reported since the start, by UUID. If NVML cannot report them, there are
    none."""

    def __init__(self, uuids: Iterable[str]) -> None:
        self._seen: dict[str, str] = {}
        self._events: Any = None
        import pynvml

        try:
            events = pynvml.nvmlEventSetCreate()
            for uuid in uuids:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except (pynvml.NVMLError, AttributeError) as error:  # an old driver, a device without events
            log.debug("NVML reports no Xids: %s", error)
        else:
            self._events = events

    def look(self) -> dict[str, str]:
        """Read what has happened; returns the text for each device that had such an error."""
        import pynvml

        for _ in range(_AT_ONCE if self._events is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
            except (pynvml.NVMLError, AttributeError):  # usually nothing has happened
                break
            if (number := int(event.eventData)) in OF_THE_HARDWARE:
                name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
                self._seen[name] = f"Xid {number}: {OF_THE_HARDWARE[number]} (NVML)"
        return dict(self._seen)

    def forget(self, uuid: str) -> None:
        """Drops what was reported about a device."""
        self._seen.pop(uuid, None)
