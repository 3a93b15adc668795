"""The bubble agent: trials run in the idle windows of a pipeline-parallel training job, without slowing the job.

Words. The *primary* is the training job; a rank of it runs one *stage*. A *window* is a wait of a stage for its
neighbours. A *slot* is the place of a communication instruction in the rank's step: the same slot waits about as long
in every step. A *trial* runs beside a stage and works only while the stage's *gate* is open.

Who writes what. Each stage has one file in shared memory (`headrace_torch.bubble_shm`), and each word in it has
one writer. The rank writes its progress, and opens and closes the gate from the table of lengths that the agent
has written. The agent writes that table, its permission with a lease, and orders to the trial. The trial writes
what it does. Nobody waits for anybody else.

What is learned, and who decides. `predictor` learns the length of each slot's window. `slowdown` compares steps
with trials to control steps without. `controller` turns that into a level of `budget`. `backstop` stops a trial
that does not close its gate. These four are pure: values in, values out. `stage` and `job` put them together.

Which clock. Every process on a machine reads CLOCK_MONOTONIC, in nanoseconds. A hint from another machine counts
from the moment it arrives.

What happens when a process dies. The agent: its lease expires, so no gate opens, and the primary continues; a new
agent finds the files. The primary: nobody opens the gate, and an open gate closes at its deadline. The trial:
nobody reads the gate. If a hint is lost, the learned length applies.
"""
