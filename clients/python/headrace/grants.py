"""Environment variables in which a worker describes a program's grant, defined once for both sides."""

from typing import Final

WORLD_SIZE = "HEADRACE_WORLD_SIZE"
"""How many slots were granted."""
RANK = "HEADRACE_RANK"
"""The process's rank in a gang with one process per slot; absent in a trial with one process."""
LAST_WORDS = "HEADRACE_LAST_WORDS_FD"
"""For a rank: the descriptor of the pipe through which it reports its failure to the gang's leader."""
TERM_MARK = "HEADRACE_TERM_MARK_FD"
"""The number of a descriptor that the trial inherits, if its worker is a batch job: the file has a byte once SIGTERM
comes from the worker."""
TERM_MARK_FILE = "headrace-term"
"""The name of that file, which exists in memory only."""
CPUS = "HEADRACE_CPUS"
"""How many cores come with the grant, over all its processes: its slots' share of the machine's cores, at least
1.
"""
GPU_SHARE = "HEADRACE_GPU_SHARE"
"""The fraction of a GPU that a trial has, such as 0.25; absent if it has whole slots."""
GPU_MEMORY_BYTES = "HEADRACE_GPU_MEMORY_BYTES"
"""The trial's memory budget on a shared GPU."""
BUNDLE = "HEADRACE_BUNDLE"
"""The id of the grant whose leases this process holds together; absent in a process with one trial."""

DEFAULT_RANK_PATIENCE_S = 60.0
"""How long the other ranks wait for one, in addition to the longest time between two reports, if a study has no
`report_timeout_s`.
"""
DEFAULT_GRACE_S = 30.0
"""How long a trial has to exit when it is asked to, if a study has no `trial.grace_s`."""
WHOLE: Final = 1000
"""A whole slot, in thousandths of one."""
