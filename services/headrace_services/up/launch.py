"""Becomes a child of `headrace up`: enters a folder, changes the user, ties its life to the parent's, and executes
the command.

It is a separate program rather than a `preexec_fn`, because no Python may run between fork and exec in a process
that has threads. It is run by path with `python -I -S` and therefore imports only the standard library.
"""

import argparse
import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1


def command(
    program: tuple[str, ...],
    *,
    death_signal: int = signal.SIGKILL,
    user: str | None = None,
    folder: "os.PathLike[str] | None" = None,
) -> list[str]:
    """The command line that starts a program in this way, as a child of this process."""
    line = [sys.executable, "-I", "-S", __file__, "--parent", str(os.getpid())]
    line += ["--death-signal", str(int(death_signal))]
    line += [] if user is None else ["--user", user]
    line += [] if folder is None else ["--folder", os.fspath(folder)]
    return [*line, "--", *program]


def main(arguments: list[str]) -> None:
    """Does not return: the process becomes the command."""
    parser = argparse.ArgumentParser(prog="launch")
    parser.add_argument("--parent", type=int, required=True, help="the process to die with")
    parser.add_argument(
        "--death-signal", type=int, required=True, help="what to be sent when the parent dies"
    )
    parser.add_argument("--user", help="the system user to become")
    parser.add_argument("--folder", help="where to stand, entered before the user changes")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    if options.folder is not None:
        os.chdir(options.folder)
    if options.user is not None:
        become(options.user)
    # After the change of user, which clears it.
    die_with(options.parent, options.death_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    os.execvp(options.command[0], options.command)  # noqa: S606 - to become the command is the point


def become(user: str) -> None:
    """Gives up root for `user`, groups included."""
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


def die_with(parent: int, death_signal: int) -> None:
    """Asks the kernel for `death_signal` when `parent` ends; does nothing if the kernel does not support it."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the call, so no signal will arrive
        sys.exit(f"the parent process {parent} is gone")


if __name__ == "__main__":
    main(sys.argv[1:])
