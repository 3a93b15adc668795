"""The stacks of a process that hangs, asked for before it is ended.

Only a process that has said that it prints them is asked (`AttachRequest.stack_signal`): to any other one such a signal
is the end. It may have ended since, and another process may have its number: it must be of the program's session.
"""

import os
import signal

STACKS_S = 0.5
"""How long a process has to print them: SIGTERM, which has a lower number, would be delivered first."""


def ask_for_stacks(pid: int, number: int, session: int) -> bool:
    """Sends a process of a session its signal. Returns whether it was there, and said to print its stacks."""
    if not session or not signal.SIGRTMIN <= number <= signal.SIGRTMAX:
        return False
    try:
        if os.getsid(pid) != session:
            return False
        os.kill(pid, number)
    except OSError:  # it has ended
        return False
    return True
