"""`headrace up`: a database, schedulers and a worker on this machine, from one command.

What is where. `up` is a supervisor and nothing else: it starts programs, watches them and stops them. It
imports neither the scheduler nor the worker, holds no state that matters, and may be killed at any instant.
Postgres holds the truth, as everywhere; the folder `{home}` holds Postgres' files, the checkpoints, the worker's
outbox and the logs, and outlives every process.

Order. Children start one after another (Postgres, schedulers, worker), each when the one before is ready, and
stop in reverse, so that a worker can still tell a scheduler, and a scheduler can still tell Postgres, what it
has to say at the end. "Ready" is asked for, never assumed: Postgres answers a query, a scheduler says SERVING to
the standard health check, the worker is listed by a scheduler as connected.

States of a child. starting → ready → (died → starting)* → stopping → gone. A child that dies before it was ever
ready ends `up` with the end of its log: a wrong option does not mend itself. A child that was ready once is started
again for as long as `up` runs, after a pause that grows and is drawn at random, so that children which need each
other do not fall over in step.

What happens when something is lost:

- A child dies (crash, OOM killer, `kill -9`): it is started again with the same command, hence the same port and
  the same name, and the others reconnect by themselves.
- `up` itself dies without a word: the kernel sends each child its death signal (Linux, PR_SET_PDEATHSIG), so that
  no orphan holds the port or the database. The next `up` waits for what is left of the old Postgres and goes on.
- Two `up` on one home: the second is refused. The proof is a lock that the kernel drops with the process, never
  the mere existence of a file.
- The terminal closes (SIGHUP), Ctrl-C (SIGINT) or SIGTERM: a clean stop. A second signal kills.
"""
