"""Workers from Ray: one actor for each seat, which runs `headrace worker` as a process of its own.

**Seats.** The actor of seat 3 is `headrace-NAME-3` in the namespace `headrace`, and Ray has one living actor of a name:
the second of two loops that fill a seat is told so. The actor is detached, so it outlives the loop, and it is not
restarted: it ends with its worker, and the next turn fills the seat again.

**Names and tokens.** A worker's name is `ray-NAME-3-ID`, with the end of its actor's id, which no other actor ever has.
The actor starts its worker when the loop has called it with a join token for that name, and hands the token over on
standard input: it is in no file. A second call with another token is answered no, so the loop revokes that one.

What can go wrong:

    an answer is lost                    the same token again is answered yes
    no node has the resources            the actor is pending, and Ray's autoscaler sees it; nothing is cancelled
    the actor's process is killed        the kernel tells its worker to drain
    a node dies                          the actor ends with it, and the scheduler interrupts the worker's trials
    the token never arrives              the actor leaves after `TOKEN_WAIT_S`, and its seat is free again
    Ray does not answer                  each call has a time limit; the turn fails, the next one tries again
"""
