"""The settings that a worker daemon is started with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.mps import Mode
from headrace_worker.join_token import GivenToken
from headrace_worker.run_as import OtherUser
from headrace_worker.stay import StayLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One daemon's settings. `home` holds everything that it keeps: the outbox, the logs, the scratch space."""

    name: str
    home: Path
    schedulers: tuple[str, ...]
    store_url: str
    cpu_slots: int | None = None
    fake_gpus: int = 0
    fake_links: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False
    tls_ca: Path | None = None
    # What it joins with, if it has no certificate yet.
    join_token: GivenToken | None = None
    # How long trials have to exit when the daemon is stopped, and how long the scheduler has to receive the
    # messages.
    stop_grace_s: float = 10.0
    # How long trials have, at SIGTERM and at a spot notice, to save at their next reports and move elsewhere.
    drain_grace_s: float = 30.0
    # When the daemon leaves by itself.
    stay: StayLimits = field(default_factory=StayLimits)
    # The file whose appearance announces the machine's end.
    spot_notice: Path | None = None
    # Variables of the daemon's environment that trials get in addition to the listed ones
    # (`headrace.environment`).
    pass_env: tuple[str, ...] = ()
    # The user that trials run as; None: the daemon's user.
    run_as: OtherUser | None = None
    # The mode bits that trials' files do not get; None: the same as for the daemon's files.
    trial_umask: int | None = None
    # Whether a standby process is kept for the next trial of each busy slot.
    prestart: bool = True
    # How much disk space the code of studies may use; what it requires may use as much again.
    code_cache_bytes: int = 20 << 30
    # Whether a bubble agent runs beside the daemon, and how long trials may take to leave bubbles that are gone.
    bubbles: bool = False
    bubble_leave_s: float = 20.0
    # Whether trials share a GPU through MPS.
    mps: Mode = Mode.AUTO
    # Where to expose metrics; empty: nowhere.
    metrics_listen: str = ""

    @property
    def outbox_path(self) -> Path:
        """The durable memory."""
        return self.home / "outbox.sqlite"

    @property
    def log_dir(self) -> Path:
        """Trial logs: `{log_dir}/{study}-{uid}/{number}.log`."""
        return self.home / "logs"

    @property
    def code_dir(self) -> Path:
        """The archives of studies' code, by digest."""
        return self.home / "code" / "sha256"

    @property
    def environments_dir(self) -> Path:
        """The environments that studies require."""
        return self.home / "environments"

    @property
    def scratch_dir(self) -> Path:
        """One folder per lease; emptied at every start."""
        return self.home / "scratch"

    @property
    def homes_dir(self) -> Path:
        """The homes of projects, whose trials run as another user."""
        return self.home / "homes"

    @property
    def tmp_dir(self) -> Path:
        """The temporary folders of such trials; emptied at every start."""
        return self.home / "tmp"

    @property
    def taken_dir(self) -> Path:
        """Checkpoints taken over from trials of another user; emptied at every start."""
        return self.home / "taken"
