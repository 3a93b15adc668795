"""Trials as another OS user than their daemon (`headrace worker --run-as USER`). The daemon is root.

    HOME               root's, and others may pass through it
      logs/            root's only: a trial has its log as an open file, and owns it
      scratch/LEASE/   root's, and others may pass through it
        checkpoints/   the trial's: it saves here
        restore/       the trial's: what it resumes from
        plan/          the trial's
      taken/           root's only: checkpoints that the daemon has taken over, until they are in the store
      homes/, tmp/     where trials live (`quarters`)

The daemon reads nothing through a path that a trial can change. A checkpoint is first moved out of the trial's
reach. Then it becomes root's from the top down, and anything that is not a file of the trial's is rejected. So no
link leads the daemon to a file that the trial may not read.
"""

import errno
import os
import pwd
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.checkpoints import CheckpointInvalidError
from headrace.errors import InvalidFieldError, Violation
from headrace_worker.disk import clear_away

_FIELD = "--run-as"
_PASSING = 0o711
_CHUNK_BYTES = 1 << 24
_DEEPEST = 50
_NO_WAY = 3
_NO_PROGRAM = 4
# Becomes the user in a separate program: `subprocess` would fork for it, and gRPC aborts when a process with its
# threads forks.
_TRY = f"""
import os, sys
user, folder, program = sys.argv[1:]
uid, gid, groups = user.split(":")
os.setgroups([int(group) for group in groups.split(",") if group])
os.setgid(int(gid))
os.setuid(int(uid))
try:
    os.chdir(folder)
except OSError:
    sys.exit({_NO_WAY})
try:
    os.execv(program, [program, "-c", "import headrace.trial.process"])
except OSError:
    sys.exit({_NO_PROGRAM})
"""
_KEPT = frozenset({stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherUser:
    """The user that trials run as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def spelled(self) -> str:
        """The user in the form that the shim takes."""
        return ":".join((str(self.uid), str(self.gid), ",".join(map(str, self.groups))))

    @property
    def variables(self) -> dict[str, str]:
        """What its environment says about it. Python loads nothing from the user's home, where trials of other
        projects may have left something; a study can turn that on again."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "PYTHONNOUSERSITE": "1"}

    def give(self, path: Path) -> None:
        """Gives it a file or a folder with everything in it, which it cannot reach before."""
        give_to(self.spelled, path)

    def may_read(self, descriptor: int) -> bool:
        """Whether it may open this file by itself, judging by the modes of the file and of the folders above it."""
        try:
            place = Path(f"/proc/self/fd/{descriptor}").readlink()
            return self._may(os.R_OK, os.fstat(descriptor)) and all(
                self._may(os.X_OK, above.stat()) for above in place.parents
            )
        except OSError:  # it was deleted
            return False

    def may_enter(self, folder: Path) -> bool:
        """Whether it may enter a folder, or the part of its path that exists, judging by the modes."""
        above = [place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()]
        return all(self._may(os.X_OK, place.stat()) for place in above)

    def require_no_hand_in(self, folder: Path, option: str) -> None:
        """Raises `InvalidFieldError` if it may write to a folder of the worker's, or replace one."""
        for place in dict.fromkeys((folder.absolute(), folder.resolve())):
            holds = False  # a part of the path, which a sticky bit protects from others
            for path in (place, *place.parents):
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue
                writes = stat.S_ISDIR(found.st_mode) and self._may(os.W_OK, found)
                if found.st_uid == self.uid or (writes and not (holds and found.st_mode & stat.S_ISVTX)):
                    raise _fault(
                        self.name,
                        f"could replace what the worker keeps in {folder}: it may write to {path}",
                        f"Give another {option}, whose folder and all above it belong to root, or change their modes.",
                    )
                holds = True

    def _may(self, right: int, found: os.stat_result) -> bool:
        """Whether a mode gives it a right: `os.R_OK`, `os.W_OK` or `os.X_OK`."""
        if found.st_uid == self.uid:
            return bool(found.st_mode >> 6 & right)
        return bool(found.st_mode >> (3 if found.st_gid in {self.gid, *self.groups} else 0) & right)

    def claim(self, folder: Path, *, root: Path, into: Path) -> Path:
        """Moves a checkpoint from below the trial's `root` to a folder in `into`, and makes it root's.

        Raises `CheckpointInvalidError` if it is not a folder below `root`, or holds anything but the user's files
        and folders.
        """
        try:
            parts = folder.relative_to(root).parts
        except ValueError:
            parts = ()
        if not parts or ".." in parts:
            raise CheckpointInvalidError(f"checkpoint folder {folder} is not a folder below {root}")
        taken = into / uuid.uuid4().hex
        try:
            into.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(root, *parts[:-1]) as above:
                os.rename(parts[-1], taken, src_dir_fd=above)
            with _opened(taken) as top:
                self._seal(top, folder, 0)
        except OSError as error:
            _remove(taken)
            if error.errno in (errno.ENOTDIR, errno.ENOENT, errno.ELOOP):
                raise CheckpointInvalidError(f"checkpoint folder {folder} is not a folder") from None
            raise
        except CheckpointInvalidError:
            _remove(taken)
            raise
        return taken

    def _seal(self, descriptor: int, shown: Path, depth: int) -> None:
        """Makes a folder root's, and then what is in it: from then on nothing in it changes. Files are copied,
        since a process of the user may have them open for writing."""
        if os.fstat(descriptor).st_uid != self.uid or depth > _DEEPEST:
            raise CheckpointInvalidError(f"checkpoint folder {shown} is not the trial's own, or is too deep")
        os.fchown(descriptor, 0, 0)
        os.fchmod(descriptor, 0o700)
        with os.scandir(descriptor) as scanned:
            entries = list(scanned)  # as they are now: copies appear in between
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                inner = os.open(entry.name, _DIRECTORY, dir_fd=descriptor)
                try:
                    self._seal(inner, shown / entry.name, depth + 1)
                finally:
                    os.close(inner)
            elif stat.S_ISREG(found.st_mode) and found.st_uid == self.uid:
                _copy_in_place(descriptor, entry.name)
            else:
                raise CheckpointInvalidError(
                    f"checkpoint folder {shown}: {entry.name} is not a regular file of user {self.name}"
                )

    def seal(self, folder: Path) -> None:
        """Makes a folder of the user's root's, with everything in it: everybody may read it, and nobody else
        change it. No process of the user may be able to reach the folder any more. Raises `OSError` if it holds
        anything that is not only the folder's."""
        for above, folders, files, descriptor in os.fwalk(folder):
            os.fchown(descriptor, 0, 0)
            os.fchmod(descriptor, 0o755)
            for name in (*folders, *files):
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                mode = found.st_mode
                alone = found.st_nlink == 1 or stat.S_ISDIR(mode)
                if found.st_uid != self.uid or not alone or stat.S_IFMT(mode) not in _KEPT:
                    raise OSError(f"{above}/{name} is neither a file of its own nor a folder nor a link")
                if not stat.S_ISDIR(mode):
                    os.chown(name, 0, 0, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(mode):
                    os.chmod(name, 0o755 if mode & stat.S_IXUSR else 0o644, dir_fd=descriptor)


def _copy_in_place(folder: int, name: str) -> None:
    """Replaces a file with a copy that is root's, in a folder that is root's already."""
    copy = f".{uuid.uuid4().hex}"
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            left = os.fstat(source).st_size  # a process that has it open may still write to it
            while left > 0 and (sent := os.sendfile(target, source, None, min(left, _CHUNK_BYTES))):
                left -= sent
        finally:
            os.close(target)
    finally:
        os.close(source)
    os.rename(copy, name, src_dir_fd=folder, dst_dir_fd=folder)


def uid_of(spelled: str) -> int:
    """The number of a user, from the form that the shim takes."""
    return int(spelled.partition(":")[0])


def in_group(spelled: str, group: int) -> str:
    """A user in a further group, in the form that the shim takes."""
    return f"{spelled}{'' if spelled.endswith(':') else ','}{group}"


def give_to(spelled: str, path: Path) -> None:
    """Gives a user, in the form that the shim takes, a file or a folder with everything in it."""
    uid, gid = map(int, spelled.split(":")[:2])
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            os.chown(Path(folder, name), uid, gid, follow_symlinks=False)
        os.chown(folder, uid, gid, follow_symlinks=False)
    if not path.is_dir():
        os.chown(path, uid, gid, follow_symlinks=False)


def other_user(name: str) -> OtherUser:
    """The user of this name. Raises InvalidFieldError if trials cannot run as it."""
    if os.geteuid() != 0:
        raise _fault(
            name, "needs a worker that runs as root", "Start the worker as root, or leave --run-as out."
        )
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise _fault(name, "is not a user of this machine", "Create one: useradd --system NAME.") from None
    if found.pw_uid == 0:
        raise _fault(name, "is root", "Choose a user without special rights.")
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return OtherUser(name=name, uid=found.pw_uid, gid=found.pw_gid, groups=groups, home=found.pw_dir)


def prepare(user: OtherUser, home: Path) -> None:
    """Makes the home's folders as described above. Raises InvalidFieldError if the user cannot work there."""
    for folder in (home, home / "scratch"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | _PASSING)
    for folder in (home / "logs", home / "taken"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
    tried = subprocess.run(
        (sys.executable, "-I", "-S", "-c", _TRY, user.spelled, str(home / "scratch"), sys.executable),
        cwd="/",
        env={"PATH": os.defpath, **_import_path()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if tried.returncode == _NO_PROGRAM:
        raise _fault(
            user.name,
            f"may not run {sys.executable}",
            "Install Headrace where every user can read it, such as below /opt.",
        )
    if tried.returncode == _NO_WAY:
        raise _fault(
            user.name,
            f"cannot reach the worker's home, {home}",
            "Give another --home, such as /var/lib/headrace/NAME: each folder above it needs the mode bits o+x.",
        )
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or [f"status {tried.returncode}, and no output"])[-1]
        raise _fault(
            user.name,
            f"cannot import headrace with {sys.executable}: {last}",
            "Install Headrace where every user can read it, such as below /opt.",
        )


def pass_through(folder: Path) -> None:
    """Lets others pass through a folder, but not list it."""
    folder.chmod(_PASSING)


def _remove(path: Path) -> None:
    """Deletes a checkpoint that was taken over, whatever it is."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    clear_away(path)


@contextmanager
def _opened(folder: Path, *parts: str) -> Iterator[int]:
    """A folder, and those below it by name, none of which may be a link."""
    descriptor = os.open(folder, _DIRECTORY)
    try:
        for part in parts:
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _import_path() -> dict[str, str]:
    found = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": found} if found else {}


def _fault(name: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=_FIELD, value=name, message=message, remedy=remedy)])
