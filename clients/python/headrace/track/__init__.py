"""Copies studies to experiment trackers, and sends notifications: `headrace track`.

The exporter is a process of its own that only reads. It follows each study's events through the public SDK and
writes them to a tracker: MLflow, Weights & Biases, TensorBoard. Neither the scheduler nor a worker knows of it, so a
tracker that is slow or down delays no trial; the exporter falls behind and catches up.

**Who is authoritative.** The event log is: cursors count from 1, without gaps until events are deleted by age. What a
tracker has is derived from it, and can be written again from the first event at any time. The exporter itself keeps
nothing: its position is kept where the data is (a tag in MLflow, a file beside TensorBoard's and W&B's) and is read
back when a study is opened. Webhooks have no place for it, so their position is a file in the home folder.

**Exactly once.** A run is the tracker's copy of one trial. Each run has a cursor: every event of the trial up to it
has been written. Events up to the cursor are skipped. A kill may fall between a write and its cursor, so each
adapter also makes the write itself repeatable:

| tracker | after a kill between a write and its cursor |
|---|---|
| MLflow | the run's metrics are read back, and points that exist are not sent; the server also drops identical points |
| TensorBoard | the file is cut to the length that the cursor names, and the same bytes are written again |
| W&B | the run's folders are deleted, and the run is written again from its first event |
| webhook | the same notification is sent again, with the same id and body: it was stored before it was sent |

A study has a cursor too. It may be behind its runs, never ahead: it only says where to start reading.

**What happens when.** A tracker that does not answer (`AwayError`) or rejects the credentials (`RefusedError`) is
tried again, with growing pauses. A tracker that has lost what it had (`ForgottenError`) gets the study again from its
first event; runs that still exist skip what they have. A run that a user deleted in MLflow stays deleted. Events that
were deleted by age leave a gap in the cursors: the tables of trials and reports make up for them. A study that is
deleted and made again under its name has another uid, and another copy. A tracker that is ahead of the scheduler
shows that the scheduler's database was restored: what the tracker has is set aside, and a new copy begins.

Modules: `entries` (pure: what to write for an event), `names` (pure: names that a tracker forbids), `notices` (pure:
what to notify of), `redaction` (pure: addresses without secrets), `tracker` (the protocols), `exporter` (one study),
`all_studies`, `targets` (`--to`), `trouble` (what people are told), `positions` and `outbox` (files), and an adapter
for each tool.
"""
