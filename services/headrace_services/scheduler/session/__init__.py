"""The streams to the worker daemons.

Who is authoritative: the lease rows. A session is a cache of them for one worker, on the replica that the
worker happens to be connected to.

- A worker's durable messages (Report, Restored, Exited) go into the study's next step and are acknowledged
  after its commit, in whatever order the commits come. A message that was committed before is answered as it
  was the first time, and acknowledged again; one that names an old epoch is acknowledged, changes nothing,
  and is answered with Cancel.
- Assign and Cancel are sent when a step commits, and not before Welcome. They may be lost, with the stream or
  with the replica that committed the step, so every heartbeat is compared with what the worker should hold, which
  is read from the rows at every heartbeat; a difference that lasts is settled by the rows.
- A worker has one session. A newer one takes over, wherever it is; the older one finds out at its next
  heartbeat and ends.
- When the stream breaks nothing happens to the leases: the worker trains on and comes back. They expire when
  the worker is not heard of for the lease time, by the database's clock (`sweeper`), and not while the
  database itself was away for part of that time.
"""
