"""Proposals made ahead of need, computed off the event loop.

If a study's sampler learns, a pool of processes (`pool`, `process`) computes its next configurations, which are
submitted to its cycles as inputs. The states of a proposal:

    wanted ── a cycle committed with fewer runnable trials than its lookahead, or the sweep found such a study
    asked  ── the suggester has read what is new in the rows, and a process of the pool is computing
    taken  ── a cycle found it to be the next one, and created the trial
    void   ── a cycle found that it is not: another replica's was taken, or the study ended; nothing happens

The rows are authoritative. Whether a proposal is wanted, its number, the results and the pending trials are read
in one transaction. A suggester remembers only what it has sent to which process, and a process holds a model that
follows from what it was sent. So any replica can continue if another one dies. If two replicas compute the same
proposal, no harm is done, because the study's count of sampled configurations admits it only once.

If a process dies or hangs, or a sampler raises an exception, only the attempt is lost. It is repeated after a
growing pause, `ATTEMPTS` times in all. Then the proposal is a random draw, and an event says so. The next one uses
the sampler again. So a study never waits for a sampler that does not answer. (OSS Vizier's client waits for ever
after a failed suggest.)

Local time is used only for the pauses and for the time limit of an attempt, both by this process's own clock.
"""
