"""What a caller may be: the roles of people in a project, and the role of machines."""

from enum import StrEnum


class Role(StrEnum):
    """A role, from the least to the most that a person may do; WORKER stands beside them."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"
    WORKER = "worker"


class Auth(StrEnum):
    """Who may call a server."""

    TOKENS = "tokens"
    """Whoever has a token, as far as its role goes."""
    NONE = "none"
    """Whoever reaches it, as an admin."""
