"""Proposals ahead of need, computed beside the event loop.

A study whose sampler learns has its next configurations computed by a pool of processes (`pool`, `process`), and
submitted to its cycles as inputs. The states of a proposal:

    wanted ── a cycle committed with fewer runnable trials than its lookahead, or the sweep found such a study
    asked  ── the suggester read what is new in the rows, and a process of the pool is at work
    taken  ── a cycle found it to be the next one, and created the trial
    void   ── a cycle found that it is not: another replica's was taken, the study ended; nothing happens

Who is authoritative: the rows. Whether a proposal is wanted, its number, the results and the pending trials are read in
one transaction; a suggester remembers only what it has told to which process, and a process holds a model that follows
from what it was told. So any replica can go on where another one died. Two that compute the same proposal do no
harm, because the study's count of sampled configurations admits it once.

What is lost when a process dies, or hangs, or a sampler raises: the attempt. It is repeated after a growing pause,
`ATTEMPTS` times in all. Then the proposal is a random draw, and an event says so. The next one uses the sampler again.
So a study never waits for a sampler that does not answer. (OSS Vizier's client waits for ever after a failed suggest.)

What time is trusted for: pauses and the limit of an attempt, both of this process's own clock.
"""
