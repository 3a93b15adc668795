"""NVML for daemons in tests: GPUs that do not exist.

The file that `FAKE_NVML` names has the memory errors of each GPU by its UUID, as JSON. A test changes it while the
daemon runs.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED = 15, 6, 3
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_P2P_CAPS_INDEX_NVLINK = 2


class NVMLError(Exception):
    """NVML's answer to a query that it cannot answer."""

    def __init__(self, value: int) -> None:
        super().__init__("not supported")
        self.value = value


def _errors() -> dict[str, int]:
    found: dict[str, int] = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    return found


def nvmlInit() -> None:
    _errors()


def nvmlShutdown() -> None: ...


def nvmlDeviceGetCount() -> int:
    return len(_errors())


def nvmlDeviceGetHandleByIndex(index: int) -> str:
    return sorted(_errors())[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    return uuid


def nvmlDeviceGetUUID(handle: str) -> str:
    return handle


def nvmlDeviceGetName(handle: str) -> str:
    return "NVIDIA H200"


def nvmlDeviceGetMemoryInfo(handle: str) -> SimpleNamespace:
    return SimpleNamespace(total=1 << 37, used=0)


def nvmlDeviceGetTotalEccErrors(handle: str, *_: int) -> int:
    return _errors()[handle]


def nvmlDeviceGetUtilizationRates(handle: str) -> SimpleNamespace:
    return SimpleNamespace(gpu=0)


def nvmlDeviceGetP2PStatus(*_: object) -> int:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetTopologyCommonAncestor(*_: object) -> int:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlSystemGetDriverVersion() -> str:
    return "580.65.06"


def nvmlDeviceGetMaxMigDeviceCount(handle: str) -> int:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlEventSetCreate() -> None:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
