"""Work whose size a caller can choose, done in separate processes with limits.

A server's event loop serves everybody, so nothing whose size a caller chooses runs on it, or in a thread beside
it. Such work goes to a pool of processes (`pool`), each of which answers one question at a time (`process`). Each
pool limits the memory of a call, its running time (not the time it waits), how long it may wait, and how many
calls may wait (`limits`). A call that exceeds a limit is rejected with TooLargeError. A call whose caller has gone
away stops at once: its process is killed, and another one replaces it. If processes are scarce, callers take
turns, and no caller has all of them (`queue`). A caller is the owner of a token, over whatever connections; if no
token is required, it is a connection.

Who is authoritative: nobody here. A process keeps nothing between two questions, so killing one loses no more than
its answer. What time is trusted for: the limit of an answer, by this process's own clock. If this process is
killed, the others end too: at once if they are idle, otherwise by an alarm when the time of their call is over.
"""

from headrace_services.sandbox.limits import Limits
from headrace_services.sandbox.pool import Pool
from headrace_services.sandbox.process import Answer, Run, Tell

__all__ = ["Answer", "Limits", "Pool", "Run", "Tell"]
