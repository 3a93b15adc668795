"""What can be wrong with a checkpoint or its store."""


class CheckpointError(Exception):
    """A checkpoint cannot be used; trying again does not help."""


class CheckpointMissingError(CheckpointError):
    """Nothing complete lies at the reference."""


class CheckpointGoneError(CheckpointMissingError):
    """The same, and the store is there: whoever deleted it meant this checkpoint."""


class CheckpointCorruptError(CheckpointError):
    """The bytes are not the ones that were stored."""


class CheckpointInvalidError(CheckpointError):
    """A local folder that cannot become a checkpoint."""


class StoreUnavailableError(OSError):
    """The store does not answer; trying again may help."""
