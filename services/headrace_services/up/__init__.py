"""`headrace up`: a database, schedulers, a worker and a console on this machine, from one command.

What is where. `up` is only a supervisor: it starts programs, watches them and stops them. It imports neither the
scheduler nor the worker, holds no state that matters, and may be killed at any instant. Postgres holds the
authoritative state, as everywhere; the folder `{home}` holds Postgres' files, the checkpoints, the worker's outbox
and the logs, and outlives every process.

Order. Children start one after another (Postgres, schedulers, worker), each when the previous one is ready. They
stop in reverse, so that a worker can still send its last messages to a scheduler, and a scheduler to Postgres.
"Ready" is checked, never assumed: Postgres answers a query, a scheduler answers SERVING to the standard health
check, the worker is listed by a scheduler as connected. The console starts beside them and nothing waits for it.

States of a child. starting → ready → (died → starting)* → stopping → gone. A child that dies before it was ever
ready ends `up` with the end of its log: a wrong option does not fix itself. A child that was ready once is
restarted for as long as `up` runs, after a growing random pause, so that children that need each other do not fail
in step. A console that cannot start is tried again too: studies run without it.

What happens when something is lost:

- A child dies (crash, OOM killer, `kill -9`): it is restarted with the same command, hence the same port and the
  same name, and the others reconnect by themselves.
- `up` itself is killed: the kernel sends each child its death signal (Linux, PR_SET_PDEATHSIG), so that no orphan
  holds the port or the database. The next `up` waits for the remains of the old Postgres and continues.
- Two instances of `up` on one home: the second is rejected. The proof is a lock that the kernel releases with the
  process, never the mere existence of a file.
- The terminal closes (SIGHUP), Ctrl-C (SIGINT) or SIGTERM: a clean stop. A second signal kills.
"""
