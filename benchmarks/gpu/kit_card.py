"""What a run is on: the card and its settings, the driver, the versions.

NVML describes the card, and PyTorch says whether it can use it. PyTorch runs in a process of its own, so that the
runner holds nothing on the card. Nothing here changes a setting.
"""

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from kit_record import Card, Software

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "HEADRACE_KIT_COMMIT"
"""In a kit: the commit that it was built from."""
LOOK = """
import json, torch
usable = torch.cuda.is_available()
if usable:
    one = torch.ones(8, 8, device="cuda")
    assert float((one @ one).sum()) == 512
    card = torch.cuda.get_device_properties(0)
print("kit:", json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "",
    "name": card.name if usable else "",
    "memory_bytes": card.total_memory if usable else 0,
    "uuid": str(getattr(card, "uuid", "")) if usable else "",
}))
"""
LOOK_S = 120
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}


def look() -> tuple[Card | None, Software]:
    """The card that PyTorch uses, or None; and the versions.

    Raises:
        RuntimeError: PyTorch cannot be imported, or sees a GPU that does not compute.
    """
    ran = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=LOOK_S, check=False
    )
    said = [line.removeprefix("kit: ") for line in ran.stdout.splitlines() if line.startswith("kit: ")]
    if ran.returncode or not said:
        raise RuntimeError(f"PyTorch does not work here:\n{ran.stderr.strip()[-2000:]}")
    seen = json.loads(said[-1])
    software = Software(
        commit=commit(),
        headrace=version("headrace"),
        python=platform.python_version(),
        torch=seen["torch"],
        cuda=seen["cuda"],
    )
    if not seen["name"]:
        return None, software
    driver, settings = _nvml(seen["uuid"])
    card = Card(name=seen["name"], memory_bytes=seen["memory_bytes"], driver=driver, settings=settings)
    return card, software


def unused() -> str:
    """If PyTorch uses no GPU: why the driver's GPUs, if there are any, are not measured."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return ""
    return (
        f"the driver shows {count} GPUs, but this PyTorch cannot use them: torch.cuda.is_available()"
        if count
        else ""
    )


def commit() -> str:
    """The commit that is measured."""
    if known := os.environ.get(COMMIT):
        return known
    told = subprocess.run(
        ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


def _nvml(uuid: str) -> tuple[str, dict[str, str]]:
    """The driver's version, and the settings of a card; what NVML does not tell is left out."""
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"unknown: {error}", {}
    settings = {}
    with suppress(pynvml.NVMLError):  # each may be unknown to a card
        mode = pynvml.nvmlDeviceGetComputeMode(_card(uuid))
        settings["compute mode"] = COMPUTE_MODES.get(mode, str(mode))
    with suppress(pynvml.NVMLError):
        settings["MIG"] = "on" if pynvml.nvmlDeviceGetMigMode(_card(uuid))[0] else "off"
    return driver, settings


def _card(uuid: str) -> object:
    """NVML's handle of a card: by its UUID, or of the first one if PyTorch is too old to say."""
    import pynvml

    if uuid:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    return pynvml.nvmlDeviceGetHandleByIndex(0)
