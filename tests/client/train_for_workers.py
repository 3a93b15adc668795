"""A module with a function that workers can import."""


def train(t):
    return t["lr"]


class Holder:
    """A class whose function has a qualified name."""

    @staticmethod
    def train(t):
        return t["lr"]
