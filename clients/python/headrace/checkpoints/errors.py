"""What can be wrong with a checkpoint or its store."""


class CheckpointError(Exception):
    """A checkpoint cannot be used."""


class CheckpointMissingError(CheckpointError):
    """Nothing complete lies at the reference."""


class CheckpointGoneError(CheckpointMissingError):
    """The same, and the store's marker was seen: whoever deleted it meant this checkpoint."""


class CheckpointUnreadableError(CheckpointError):
    """It is there, and the store does not give its bytes: a read fails, or is not permitted."""


class CheckpointCorruptError(CheckpointUnreadableError):
    """The bytes are not the ones that were stored, or some are missing."""


class CheckpointInvalidError(CheckpointError):
    """A local folder that cannot become a checkpoint."""


class StoreUnavailableError(OSError):
    """The store does not answer, or what lies in its place is not the store; trying again may help."""
