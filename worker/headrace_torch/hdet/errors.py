"""What HDET rejects, and why: every message names the field, its value and the remedy.

An error that one rank finds is raised on every rank with the same text (`ReplicaGroup.agree`), so that no
rank is left waiting in a collective for one that has stopped.
"""


class HdetError(Exception):
    """Base of everything that HDET raises on purpose."""


class HdetConfigError(HdetError, ValueError):
    """A setting is out of range, or ranks were given different ones."""


class NotReplicasError(HdetError, ValueError):
    """The ranks of the replica group do not hold copies of one model: averaging them would destroy it."""


class ResumeError(HdetError, ValueError):
    """A checkpoint does not belong to this run: another number of replicas, another rank, other settings."""


class SyncError(HdetError, RuntimeError):
    """A sync point cannot be passed: no replica has finite parameters left, or a probe failed."""


class StallError(HdetError, RuntimeError):
    """The ranks wait for each other, and none of them can continue."""
