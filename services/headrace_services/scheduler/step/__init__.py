"""The step: reclaim, repack, relaunch.

One transaction takes everything that arrived for a study while the previous one ran:

1. lock the study's row, which orders all steps of a study over all replicas;
2. record the arrivals; 3. ask the policy; 4. move the trials; 5. give what became free to the next trials,
   with new leases; 6. append the events; 7. commit; 8. only then send decisions, assignments and acks.

Who is authoritative: the rows. The core works on copies that the transaction loaded under the lock, and the
transaction writes back what changed, guarded by the epoch and the state that the copy was loaded with.
A replica keeps one cache between steps, the policy with the rung results folded in (`cache`), which knows
the cursor it has seen; a step of another replica makes it catch up, an error makes it start over.

What time is trusted: none. Leases are compared with the database's clock, in the database.

What is lost when the process dies at any line: before the commit nothing was said to anybody, so senders
send again; after the commit senders that heard nothing send again and are answered from the rows.
"""
