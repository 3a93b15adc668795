"""The planner: how to split one training job over a cluster (H²O, and beyond).

A plan is two decisions. Level 1 chooses the degrees (d data, m tensor, o optimizer shards, s pipeline stages, µ
micro-batches; for mixtures also e, the ranks that share the experts). Level 2 chooses, for these degrees, which
layers are on which stage (A) and which are computed twice instead of keeping their activations (R).

Everything here is a pure function of a `Model`, a `Cluster` and a `Request`: no clock, file, socket or randomness
inside a search, so the same question has the same answer everywhere. Files are read once, by `catalogue` (presets,
devices, fitted constants: each with its source), and the edges (`command`, `service`) handle input and output.

| step | module | |---|---| | what is trained, and on what | `model`, `blocks`, `huggingface`, `cluster`,
`catalogue` | | seconds of one layer and one micro-batch | `kernels`, `collectives`, `layer_cost` | | bytes of one
layer | `memory` | | one tuple of degrees as a level 2 problem | `degrees`, `costing` | | level 2, exactly and as
in the paper | `problem`, `fronts`, `assignment`, `assignment_local` | | level 1, pruned by proven bounds |
`search`, `modes`, `expert`, `shortlist` | | the time that a schedule really takes | `schedules`, `simulator` | |
constants from measured rows | `calibration`, `measured` | | answers | `plan`, `explain`, `deltas`, `tradeoff`,
`timeline`, `drawing`, `emit` |

Finalists are ranked by simulated time; level 2 minimises the analytic time exactly; the certified lower bound says
how much faster any other assignment can be.
"""
