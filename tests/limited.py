"""Commands under a memory limit.

The shell sets it, never a `preexec_fn`: Python and gRPC's fork handlers would run between fork and exec, and a test's
process that once held a channel then starts a program that fails before it serves.
"""


def limited(memory_bytes: int | None, *command: str) -> tuple[str, ...]:
    """The command, with a limit on its address space and its children's if there is one; the process keeps its id."""
    if memory_bytes is None:
        return command
    return ("sh", "-c", 'ulimit -v "$0" && exec "$@"', str(memory_bytes // 1024), *command)
