"""Asks a cluster manager (Slurm, Kubernetes, Ray) for workers while trials wait: `headrace launch`.

    Postgres    the truth about trials, slots and workers, read through a scheduler
    engine      the truth about which workers have been requested, wait or run
    the loop    reads both in each turn, decides, and submits. It remembers only which seats rest (`rests`)

**Seats.** A launch has a name and `--max` seats, numbered from 0. Each worker sits on one, and the engine's own
object carries the seat in its name: a Slurm job `headrace-NAME-3`, a pod, a named actor. The engine guarantees that
two workers never run on one seat at the same time. So no more than `--max` workers can run, whatever the loop does:
it may be killed at any line, run twice at once, or read a list that is out of date.

A turn (`loop`):

1. `demand` reads which trials wait for slots, and which slots are free.
2. `Engine.members` lists the seats that are taken.
3. `decision` computes which free seats to fill. It is pure.
4. `Engine.submit` fills them. A request whose answer is lost shows up in the next turn's list.
5. Members that wait for a join token get one each: for their worker's name, for one use, for minutes.

6. A seat whose worker ended and was not seen connected rests, longer each time: a wrong image fails again.

Nothing here ends a worker. Workers leave by themselves: `--idle-exit`, `--lifetime`.

What can go wrong:

    an answer of the engine is lost        the next turn lists what was submitted
    two loops fill the same seat           the second request never runs next to the first, and is withdrawn
    it is killed while it withdraws that   the held request is withdrawn later, or released if it is alone on its seat
    the loop is killed                     nothing is lost; a waiting job waits for its token until the next turn
    a job starts twice (requeue)           the same seat and name; it gets a new token
    a token expires before it is used      the job leaves with a message, and its seat is free again, after a rest
    the study ends before the job starts   the worker finds no trials, and leaves after `--idle-exit`
    the scheduler or the engine is away    the turn fails, and the next one tries again
"""
