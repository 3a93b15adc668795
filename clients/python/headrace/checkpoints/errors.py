"""Errors of checkpoints and their stores."""


class CheckpointError(Exception):
    """A checkpoint cannot be used."""


class CheckpointMissingError(CheckpointError):
    """There is no complete checkpoint at the reference."""


class CheckpointGoneError(CheckpointMissingError):
    """The checkpoint is missing and the store's marker is there: the checkpoint itself was deleted."""


class CheckpointUnreadableError(CheckpointError):
    """The checkpoint exists, but its bytes cannot be read: a read fails, or is not permitted."""


class CheckpointCorruptError(CheckpointUnreadableError):
    """The bytes differ from the stored ones, or some are missing."""


class CheckpointInvalidError(CheckpointError):
    """A local folder that cannot become a checkpoint."""


class StoreUnavailableError(OSError):
    """The store does not answer, or something else is in its place. Trying again may help."""
