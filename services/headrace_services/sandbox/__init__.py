"""Work that a caller can make large, done in processes of its own.

A server's event loop serves everybody, so nothing runs on it, or in a thread beside it, whose size a caller chooses.
Such work goes to a pool of processes (`pool`), each of which answers one question at a time (`process`). Each pool
limits the memory of a call, its running time (not the time it waits), how long it may wait, and how many calls may wait
(`limits`). A call that exceeds a limit is refused with TooLargeError, and one whose caller has gone away stops at once:
its process is killed, and another one takes its place. Where processes are short, callers take turns, and none has all
of them (`queue`). A caller is whom a token stands for, over whatever connections; where no token is asked for, it is a
connection.

Who is authoritative: nobody here. A process keeps nothing between two questions, so killing one loses no more than its
answer. What time is trusted for: the limit of an answer, by this process's own clock. Should this process be killed,
the others end too: at once where they are idle, otherwise by an alarm when the time of their call is over.
"""

from headrace_services.sandbox.limits import Limits
from headrace_services.sandbox.pool import Pool
from headrace_services.sandbox.process import Answer, Run, Tell

__all__ = ["Answer", "Limits", "Pool", "Run", "Tell"]
