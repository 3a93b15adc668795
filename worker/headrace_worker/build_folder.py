"""The folder in which an environment is made, and the processes that make it. They have the rights of a trial.

    FOLDER                                  the worker's, as is its `log`
      home/ tmp/ bin/                       HOME, TMPDIR and an ssh, if trials run as another user
      source/                               the study's code, if its requirements refer to it
      requirements.txt constraints.txt pip.conf
      output                                what a step writes, for the worker to read

Installing runs programs that the study names: its Python, what builds its packages. So its processes run as trials
do (`process`), with the worker's variables that trials get, and those that start with `PIP_` or `UV_`. Nothing in
the study's folder affects them. They run in another folder, unless the requirements refer to files of the study's.
Python starts in isolated mode, which imports nothing from there. Neither pip nor uv reads the settings of a user
or of a folder. What the machine's administrator has set for everyone (`/etc/pip.conf`, `/etc/uv/uv.toml`) and for
the worker applies.

If trials run as another user, so do these processes, with a primary group of their own. Only that group may enter
the folder, and the kernel lets no process of another group trace them or reach their files through `/proc`. So
trials, which run as the same user, can change nothing here. What is installed shares neither a cache nor a home
with them.
"""

import os
import shutil
import stat
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.environment import select
from headrace_worker import own_groups
from headrace_worker.disk import clear_away
from headrace_worker.launch import LEASE_VARIABLE, Launch
from headrace_worker.process import TrialProcess
from headrace_worker.run_as import OtherUser

_MOST_BYTES: Final = 64 << 20
_PASSING: Final = 0o710
_SSH: Final = """#!/bin/sh
exec '{ssh}' -F none -o UserKnownHostsFile=/dev/null -o BatchMode=yes "$@"
"""
"""ssh looks for its user's settings in the user's home, whatever HOME says, and they may name a program to run."""
_SYSTEM_UV: Final = Path("/etc/uv/uv.toml")


class StepFailedError(Exception):
    """A step of an installation failed; the text is for the user."""


class BuildFolder:
    """One build."""

    def __init__(self, folder: Path, environ: Mapping[str, str], user: OtherUser | None) -> None:
        """`environ` is the worker's environment."""
        self.folder = folder
        self.log = folder / "log"
        self.requirements = folder / "requirements.txt"
        self._pip_conf = folder / "pip.conf"
        self._user = user
        self._installer = None if user is None else _in_group_of_its_own(user)
        self._ssh = shutil.which("ssh", path=environ.get("PATH")) or "/usr/bin/ssh"
        self._environ = self._environment(environ)

    @property
    def owner(self) -> str:
        """Who owns what the installer may change, in the form that the shim takes; empty: the worker's user."""
        return "" if self._installer is None else self._installer.spelled

    def make(self, requirements: bytes) -> None:
        """Makes the folder, empty."""
        clear_away(self.folder)
        self.folder.mkdir(parents=True)
        self.close(self.folder)
        for name in ("home", "tmp"):
            self.give_folder(self.folder / name)
        for path, content in ((self.requirements, requirements), (self._pip_conf, b""), (self.output, b"")):
            self.give(path, content)
        if self._installer is not None:
            (self.folder / "bin").mkdir(mode=0o755)
            (self.folder / "bin" / "ssh").write_text(_SSH.format(ssh=self._ssh))
            for path in (self.folder / "bin", self.folder / "bin" / "ssh"):
                path.chmod(0o755)

    def close(self, folder: Path) -> None:
        """Lets only this build's processes enter a folder of the worker's, if trials run as another user."""
        if self._installer is not None:
            os.chown(folder, 0, self._installer.gid)
            folder.chmod(_PASSING)

    def give_folder(self, folder: Path) -> None:
        """Makes a folder that the installer may write to."""
        folder.mkdir()
        if self._installer is not None:
            self._installer.give(folder)

    def give(self, path: Path, content: bytes) -> None:
        """Writes a file that the installer may change."""
        path.write_bytes(content)
        if self._installer is not None:
            self._installer.give(path)

    def open_to_all(self, place: Path, made: Path) -> None:
        """Closes what was `made`: trials may read it, and none may change it."""
        if self._user is not None:
            self._user.seal(made)
            os.chown(place, 0, 0)
            place.chmod(0o711)

    async def run(self, *args: str, cwd: Path | None = None, **environ: str) -> None:
        """Runs a step and logs what it prints. Raises `StepFailedError` and `CannotStartError`."""
        _require(args, await self._run(args, cwd, environ, self.log))

    async def succeeds(self, *args: str) -> bool:
        """Whether a program succeeds; what it prints is dropped."""
        return not await self._run(args, None, {}, Path("/dev/null"))

    async def output_of(self, *args: str, cwd: Path | None = None, **environ: str) -> bytes:
        """What a step writes to its standard output; see `run`."""
        redirected = ("/bin/sh", "-c", 'exec "$@" >"$0"', str(self.output), *args)
        _require(args, await self._run(redirected, cwd, environ, self.log))
        return self.read_output()

    @property
    def output(self) -> Path:
        """A file for a step to write to. The step may write to it but not replace it, so it is never a link to
        another file."""
        return self.folder / "output"

    def read_output(self) -> bytes:
        """What a step wrote to the file. Raises `StepFailedError`."""
        with self.output.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES or not stat.S_ISREG(
                os.fstat(file.fileno()).st_mode
            ):
                raise StepFailedError(f"it names more packages than fit into {_MOST_BYTES >> 20} MiB")
            return file.read()

    async def _run(
        self, args: tuple[str, ...], cwd: Path | None, environ: Mapping[str, str], log: Path
    ) -> int:
        launch = Launch(
            args=args,
            # With a lease's name in their environment, all its descendants can be found when it ends.
            env={**self._environ, **environ, LEASE_VARIABLE: f"install-{uuid.uuid4().hex}"},
            working_dir=str(cwd or self.folder / "home"),
            log_path=log,
            user=self.owner,
        )
        with log.open("ab") as output:
            process = await TrialProcess.spawn(launch, output)
            try:
                return await process.wait()
            finally:
                await process.group_gone()

    def _environment(self, worker: Mapping[str, str]) -> dict[str, str]:
        settings = {name: value for name, value in worker.items() if name.startswith(("PIP_", "UV_"))}
        if "XDG_CONFIG_DIRS" in worker:
            settings["XDG_CONFIG_DIRS"] = worker["XDG_CONFIG_DIRS"]
        settings.setdefault("PIP_CONFIG_FILE", str(self._pip_conf))  # instead of the user's
        if "UV_CONFIG_FILE" not in settings:
            system = _system_uv(worker)
            settings |= {"UV_CONFIG_FILE": str(system)} if system else {"UV_NO_CONFIG": "1"}
        settings["UV_PYTHON_DOWNLOADS"] = "never"
        # A hard link into the cache would let a trial change other environments.
        settings["UV_LINK_MODE"] = "copy"
        settings["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        env = dict(select(worker).passed)
        if self._installer is not None:
            env["PATH"] = f"{self.folder / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
            own = {
                name for name in (*env, *settings) if name.startswith("XDG_") and name != "XDG_CONFIG_DIRS"
            }
            own |= {"PIP_CACHE_DIR", "UV_CACHE_DIR"}
            env = {name: value for name, value in (env | settings).items() if name not in own}
            tmp = str(self.folder / "tmp")
            return env | {**self._installer.variables, "HOME": str(self.folder / "home"), "TMPDIR": tmp}
        return env | settings


def _require(args: tuple[str, ...], code: int) -> None:
    if code:
        shown = " ".join((Path(args[0]).name, *args[1:5]))
        raise StepFailedError(f"`{shown} …` ended with status {code}")


def _in_group_of_its_own(user: OtherUser) -> OtherUser:
    """The user, in a primary group that no other process has. What the user's own groups may read, it still may."""
    return replace(user, gid=own_groups.of_new_process(), groups=(user.gid, *user.groups))


def _system_uv(worker: Mapping[str, str]) -> Path | None:
    """The settings for uv that the machine's administrator has made."""
    folders = worker.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    places = (*(Path(folder, "uv", "uv.toml") for folder in folders.split(":") if folder), _SYSTEM_UV)
    return next((place for place in places if place.is_file()), None)
