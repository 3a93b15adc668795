"""What a worker tells a program of its grant, in the environment: one place for both sides' names."""

from typing import Final

WORLD_SIZE = "HEADRACE_WORLD_SIZE"
"""How many slots were granted."""
RANK = "HEADRACE_RANK"
"""The process's rank in a gang of one process a slot; absent in a trial of one process."""
LAST_WORDS = "HEADRACE_LAST_WORDS_FD"
"""Of a rank: the descriptor of the pipe on which its gang's leader hears of its failure."""
CPUS = "HEADRACE_CPUS"
"""How many cores come with the grant, over all its processes: its slots' part of the machine's, at least 1."""
GPU_SHARE = "HEADRACE_GPU_SHARE"
"""The part of a GPU that a trial has, such as 0.25; absent where it has its slots whole."""
GPU_MEMORY_BYTES = "HEADRACE_GPU_MEMORY_BYTES"
"""The trial's memory budget on a GPU that it shares."""
BUNDLE = "HEADRACE_BUNDLE"
"""The id of the grant whose leases this process holds together; absent in a process of one trial."""

DEFAULT_RANK_PATIENCE_S = 60.0
"""How long the other ranks wait for one, beyond the longest stretch between two reports, where a study has no
`report_timeout_s`."""
DEFAULT_GRACE_S = 30.0
"""How long a trial has to leave when it is told to, where a study has no `trial.grace_s`."""
WHOLE: Final = 1000
"""A whole slot, in thousandths of one."""
