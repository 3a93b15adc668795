"""The streams to the worker daemons.

The lease rows are authoritative. A session caches them for one worker, on the replica that the worker is connected
to.

- A worker's durable messages (Report, Restored, Exited) go into the study's next cycle and are acknowledged after
  its commit, in the order of the commits. A message that was already committed gets its first answer and is
  acknowledged again. A message that names an old attempt changes nothing: it is acknowledged and answered with
  Cancel.
- Assign and Cancel are sent when a cycle commits, and not before Welcome. They may be lost, with the stream or
  with the replica that committed the cycle. So each heartbeat reads from the rows what the worker should hold, and
  compares. The rows settle a difference that lasts.
- A worker has one session. A newer one of the same worker takes over, on any replica. The older one notices that
  at its next heartbeat and ends. Another worker with the same name is refused while the first one is connected.
- A heartbeat extends the leases that it names. A lease that it no longer names expires.
- When the stream breaks, nothing happens to the leases: the worker continues training and reconnects. They expire
  when the worker has been silent for the lease time, by the database's clock (`sweeper`). Time in which the
  database was unavailable does not count.
"""
