"""What a caller may be: the roles of people in a project, and the role of machines."""

from enum import StrEnum


class Role(StrEnum):
    """A role, from the fewest to the most rights of a person; WORKER is separate from them."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"
    WORKER = "worker"


class Auth(StrEnum):
    """Who may call a server."""

    TOKENS = "tokens"
    """Anyone who has a token, as far as its role allows."""
    NONE = "none"
    """Anyone who reaches it, as an admin."""
