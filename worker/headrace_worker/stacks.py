"""The stacks of a process that hangs, requested before it is ended.

Only a process that has said that it prints them is asked (`AttachRequest.stack_signal`): the signal would end any
other. It may have ended since, and its number may have been reused, so it must belong to the program's session.
"""

import os
import signal

STACKS_S = 0.5
"""How long a process has to print them. SIGTERM has a lower number, and would otherwise be delivered first."""


def ask_for_stacks(pid: int, number: int, session: int) -> bool:
    """Sends its signal to a process of a session. Returns whether it was there, and had said that it prints its
    stacks."""
    if not session or not signal.SIGRTMIN <= number <= signal.SIGRTMAX:
        return False
    try:
        if os.getsid(pid) != session:
            return False
        os.kill(pid, number)
    except OSError:  # it has ended
        return False
    return True
