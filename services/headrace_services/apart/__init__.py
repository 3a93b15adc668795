"""Work that a caller can make large, done in processes of its own.

A server's event loop serves everybody, so nothing runs on it, or in a thread beside it, whose size a caller chooses.
Such work goes to a pool of processes (`pool`), each of which answers one question at a time (`process`) within
limits: so much memory, so much time, so many callers that wait. A call that exceeds a limit is refused with
TooLargeError, and one whose caller has gone away stops at once: its process is killed, and another one takes its
place.

Who is authoritative: nobody here. A process keeps nothing between two questions, so killing one loses no more than its
answer. What time is trusted for: the limit of an answer, by this process's own clock.
"""

from headrace_services.apart.pool import Limits, Pool
from headrace_services.apart.process import Answer, Run, Tell

__all__ = ["Answer", "Limits", "Pool", "Run", "Tell"]
