"""CUDA's Multi-Process Service (MPS) on one machine: where it is, and what keeps trials from sharing a GPU through
it. For the worker, which owns it, and for `headrace doctor`.

Without MPS, processes on one GPU take turns. With it, their kernels run at the same time.

`obstacle` is pure: it judges what `look` has found. Nothing here starts or changes anything.
"""

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

BINARY: Final = "nvidia-cuda-mps-control"
PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY: Final = "CUDA_MPS_LOG_DIRECTORY"
MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
OWNER: Final = "HEADRACE_MPS_OWNER"
"""In a control daemon's environment: the worker that started it, so that the worker's successor recognizes it."""
PID_FILE: Final = f"{BINARY}.pid"
WELL_KNOWN: Final = Path("/run/headrace-mps")
"""Trials of another user enter it."""
NVIDIAS: Final = Path("/tmp/nvidia-mps")  # noqa: S108 - where CUDA looks
"""Where CUDA looks for a control daemon unless its environment says otherwise, so where an administrator has it."""
OLDEST_DRIVER: Final = 495
"""The first driver branch that limits the memory of an MPS client (CUDA 11.5)."""
LONGEST_PIPE: Final = 90
"""A longer pipe directory leaves no room for the name of a socket in it: its path has at most 107 bytes."""


class Mode(StrEnum):
    """Whether a worker uses MPS."""

    AUTO = "auto"
    """If it can; otherwise shares take turns."""
    ON = "on"
    """Always: a share that cannot have MPS is not started."""
    OFF = "off"


class ComputeMode(StrEnum):
    """A card's compute mode. Nothing here changes it."""

    DEFAULT = "default"
    EXCLUSIVE = "exclusive"
    PROHIBITED = "prohibited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What matters about a GPU."""

    uuid: str
    mode: ComputeMode = ComputeMode.DEFAULT
    divided: bool = False
    """Whether MIG is on: then its instances are the devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control daemon that runs."""

    pid: int
    uid: int
    owner: str = ""
    """The worker that started it, as far as this process may know; empty for anyone else."""

    @property
    def is_site_wide(self) -> bool:
        """Whether an administrator runs it, for all programs of the machine."""
        return not self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a machine has."""

    pipe: Path
    binary: str | None
    control: Control | None = None
    """The control daemon that runs at `pipe`."""
    pipe_uid: int | None = None
    """Whose folder `pipe` is; None if there is none."""
    driver: str = ""
    """The driver's version; empty if it is not known."""
    cards: tuple[Card, ...] = ()


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why trials cannot share a GPU through MPS, and what to do about it."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}. {self.remedy}"


def obstacle(facts: Facts, *, uid: int, trials_uid: int, enters: bool = True) -> Obstacle | None:
    """Why trials of user `trials_uid` cannot use MPS through a process of user `uid`; None if they can. `enters`: the
    trials' user may enter the folder."""
    if (branch := _branch(facts.driver)) is not None and branch < OLDEST_DRIVER:
        return Obstacle(
            f"driver {facts.driver} cannot limit the memory of a share under MPS",
            f"Install driver {OLDEST_DRIVER} or newer.",
        )
    if facts.binary is None:
        return Obstacle(
            f"{BINARY} is not on the PATH",
            "Install it with the driver (Debian and Ubuntu: nvidia-compute-utils), or use --mps off.",
        )
    if len(os.fsencode(facts.pipe)) > LONGEST_PIPE:
        return Obstacle(
            f"the path of the MPS folder {facts.pipe} has more than {LONGEST_PIPE} bytes",
            f"Set {PIPE_DIRECTORY} for the worker to a shorter one.",
        )
    if facts.control is not None and facts.control.uid not in {0, trials_uid}:
        return Obstacle(
            f"the MPS control daemon in {facts.pipe} (process {facts.control.pid}) belongs to user "
            f"{facts.control.uid}, and serves nobody else",
            f"End it as that user (echo quit | {PIPE_DIRECTORY}={facts.pipe} {BINARY}), or set {PIPE_DIRECTORY} "
            "for the worker to another folder.",
        )
    if facts.control is None and facts.pipe_uid is not None and uid not in {0, facts.pipe_uid}:
        return Obstacle(
            f"the MPS folder {facts.pipe} belongs to user {facts.pipe_uid}, and no control daemon runs there",
            f"Remove it, or set {PIPE_DIRECTORY} for the worker to another folder.",
        )
    if not enters:
        return Obstacle(
            f"the trials' user {trials_uid} cannot enter the MPS folder {facts.pipe}",
            f"Set {PIPE_DIRECTORY} for the worker to a folder that all users can enter.",
        )
    if facts.control is None and uid not in {0, trials_uid}:
        return Obstacle(
            f"trials run as user {trials_uid}, whom a control daemon of user {uid} does not serve",
            "Start the worker as root, or as the trials' user.",
        )
    return None


def closed(facts: Facts) -> list[Obstacle]:
    """Which cards trials cannot share, with MPS or without, and why. A card in exclusive mode accepts any number of
    processes if an administrator runs MPS, for then all of them are its clients."""
    served = facts.control is not None and facts.control.is_site_wide
    return [why for card in facts.cards if (why := _closed(card, served=served)) is not None]


def _closed(card: Card, *, served: bool) -> Obstacle | None:
    if card.mode is ComputeMode.DEFAULT or (served and card.mode is ComputeMode.EXCLUSIVE):
        return None
    says = (
        "accepts one process at a time"
        if card.mode is ComputeMode.EXCLUSIVE
        else "accepts no process that computes"
    )
    return Obstacle(
        f"GPU {card.uuid} is in {card.mode} mode and {says}, so trials cannot share it",
        f"Run nvidia-smi --id={card.uuid} --compute-mode=DEFAULT"
        + (
            f", or run {BINARY} -d for all programs of the machine."
            if card.mode is ComputeMode.EXCLUSIVE
            else "."
        ),
    )


def _branch(version: str) -> int | None:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else None


def pipe_directory(environ: Mapping[str, str], home: Path) -> Path:
    """Where the worker with this home has its control daemon: where its environment says, else where one runs that
    CUDA finds by itself, else at one well-known place of the machine if it is root, else in its home. A worker that is
    limited to some GPUs of the machine has its own place, because a control daemon serves the GPUs that it was started
    with."""
    if named := environ.get(PIPE_DIRECTORY):
        return Path(named)
    running = control_at(NVIDIAS)
    if running is not None and running.uid in {0, os.geteuid()}:
        return NVIDIAS
    if os.geteuid():
        return home / "mps"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    some = "" if visible is None else f"-{sha256(visible.encode()).hexdigest()[:8]}"
    return WELL_KNOWN.with_name(WELL_KNOWN.name + some)


def look(pipe: Path, environ: Mapping[str, str], uuids: Sequence[str] | None = None) -> Facts:
    """Finds out what the machine has, for these cards or all of them. Asks NVML, so it may block for a moment."""
    uid = None
    with suppress(OSError):
        uid = pipe.stat().st_uid
    driver, cards = _asked(uuids)
    return Facts(
        pipe=pipe,
        binary=shutil.which(BINARY, path=environ.get("PATH")),
        control=control_at(pipe),
        pipe_uid=uid,
        driver=driver,
        cards=cards,
    )


def control_at(pipe: Path) -> Control | None:
    """The control daemon that runs at a place; None if none does, or if what it left names another program."""
    try:
        pid = int((pipe / PID_FILE).read_text().strip())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        uid = uid_of(pid)
    except (OSError, ValueError, IndexError):
        return None
    if (
        uid is None
        or state in "ZX"
        or not any(Path(os.fsdecode(word)).name == BINARY for word in words if word)
    ):
        return None
    owner = ""
    with suppress(OSError):
        prefix = f"{OWNER}=".encode()
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        owner = next((os.fsdecode(one[len(prefix) :]) for one in entries if one.startswith(prefix)), "")
    return Control(pid=pid, uid=uid, owner=owner)


def uid_of(pid: int) -> int | None:
    """Whose process this is; None if it is gone. The owner of its folder in /proc may be root if it changed its user
    itself."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return None


def has_sockets(pipe: Path) -> bool:
    """Whether something listens, or listened, at a place: a control daemon whose process is not to be seen here."""
    with suppress(OSError):
        return any(stat.S_ISSOCK(path.lstat().st_mode) for path in pipe.iterdir())
    return False


def _asked(uuids: Sequence[str] | None) -> tuple[str, tuple[Card, ...]]:
    """The driver's version, and the cards' modes, according to NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return "", ()
    except pynvml.NVMLError:  # no driver on this machine
        return "", ()
    driver, cards = "", []
    with suppress(pynvml.NVMLError):
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        count = pynvml.nvmlDeviceGetCount()
        for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(count)):
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            if uuids is None or uuid in uuids:
                cards.append(Card(uuid=uuid, mode=mode_of(handle), divided=is_divided(handle)))
    return driver, tuple(cards)


def mode_of(handle: object) -> ComputeMode:
    """The compute mode of a GPU, given by NVML's handle."""
    import pynvml

    try:
        mode = pynvml.nvmlDeviceGetComputeMode(handle)
    except (pynvml.NVMLError, AttributeError):  # not supported on some devices, nor by an old driver
        return ComputeMode.DEFAULT
    if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        return ComputeMode.PROHIBITED
    exclusive = mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    return ComputeMode.EXCLUSIVE if exclusive else ComputeMode.DEFAULT


def is_divided(handle: object) -> bool:
    """Whether MIG is on for a GPU, given by NVML's handle: then only its instances run programs."""
    import pynvml

    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError, AttributeError):  # not supported on some devices, nor by an old driver
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
