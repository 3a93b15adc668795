"""Becomes a trial's program: runs between the daemon's spawn and the program's exec.

    python -I -S shim.py PARENT_PID STATUS_FD ENVIRONMENT_FD UMASK USER CONTROL_GROUP WORKING_DIR PROGRAM [ARGUMENT ...]

It exists because some things must be done in the child, and the daemon may not run Python code in a forked child
once gRPC has threads. It makes the OOM killer prefer the trial to the daemon, enters the folder of a control group
(empty: stays where it is), becomes another user (`UID:GID:GROUPS`; empty: stays the same) and asks the kernel to
kill this process when the daemon dies. It undoes the signal settings of its own interpreter, sets the umask
(octal; empty: leaves it), changes to the working directory and execs the program. If it cannot, it writes the
error's number and reason to STATUS_FD, which is closed by a successful exec, and exits with 127.

If trials run as another user, it is root until then. So its own environment is the daemon's, and no variable of
the study's reaches its loader or its interpreter: `LD_PRELOAD` would run the study's code as root. The trial's
environment is the content of ENVIRONMENT_FD, `NAME=VALUE` entries between NUL bytes. The program gets that
environment, and is searched for on its PATH, as the trial's user.

It imports nothing but the standard library, and of it only what starts quickly.
"""

import ctypes
import errno
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""The number of the system call, for which the C library has no function."""
_KEYCTL_JOIN_SESSION_KEYRING = 1
CANNOT_START = 127
_SHIP = "Ship the folder (`headrace run --ship`), or name one that every worker has"


def main(arguments: list[str]) -> None:
    """Execs, or exits with 127."""
    parent, status_fd, environment_fd, umask, user, control_group, working_dir, *program = arguments
    status = int(status_fd)
    os.set_inheritable(status, False)
    with open(int(environment_fd), "rb") as file:  # noqa: PTH123 - a descriptor
        environment = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if entry)
    try:
        _prefer_for_oom_killer()
        if control_group:
            _enter(control_group)
        if user:
            _become(user)
        # After the change of user, which clears it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):  # the daemon died before the prctl
            os.kill(os.getpid(), signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if umask:
            os.umask(int(umask, 8))
        if working_dir:
            try:
                os.chdir(working_dir)
            except OSError as error:
                _fail(
                    status, error, f"working_dir {working_dir!r} cannot be entered: {error.strerror}. {_SHIP}"
                )
        elif user and not os.access(".", os.X_OK):
            os.chdir("/")
        os.execvpe(program[0], program, environment)  # noqa: S606 - a program and its arguments, no shell
    except OSError as error:
        _fail(status, error, f"program {program[0]!r} cannot be started: {error.strerror}")


def _enter(control_group: str) -> None:
    """If it cannot enter, the process stays in the daemon's control group, and is found without one."""
    try:
        with open(f"{control_group}/cgroup.procs", "w") as file:  # noqa: PTH123 - as below
            file.write("0")
    except OSError:  # it was removed, or the daemon's own group allows no others below it
        pass


def _become(user: str) -> None:
    """Gives up root for good, and what the kernel keeps for the daemon's session. Groups come first, while that is
    still allowed."""
    _leave_keyring()
    uid, gid, groups = user.split(":")
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(gid))
    os.setuid(int(uid))
    # A setuid program would run as another user, and the worker would not recognise it as a trial's.
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _leave_keyring() -> None:
    """Starts an empty session keyring. Whoever inherits one may read the keys in it, such as a Kerberos ticket, as
    any user."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _KEYCTL.get(os.uname().machine)
    if number is None or libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None) >= 0:
        return
    error = ctypes.get_errno()
    if error not in (errno.ENOSYS, errno.EPERM):  # no keys in this kernel, or not for containers
        raise OSError(error, os.strerror(error))


def _prefer_for_oom_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib takes as long to import as the rest
            file.write("500")
    except OSError:  # not on this kernel
        pass


def _fail(status: int, error: OSError, message: str) -> None:
    os.write(status, f"{error.errno or 0} {message}".encode(errors="replace"))
    os._exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
