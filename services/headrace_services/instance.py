"""Which `headrace up` a server belongs to.

Whoever asks at an address may meet the server of another, which took the port a moment before. So a starter gives its
servers a name of its own in the environment, and they answer to a health check of that name.
"""

import os
from typing import Final, Protocol

NAMED_IN: Final = "HEADRACE_INSTANCE"


def health_service(instance: str) -> str:
    """The name that a health check asks for."""
    return f"headrace.instance.{instance}"


class Healthy(Protocol):
    """A health service."""

    def add(self, service: str) -> None:
        """It answers for this one too."""
        ...


def tell_instance(health: Healthy, instance: str | None = None) -> None:
    """Answers to checks of the instance, by default that of the environment, if it names one."""
    named = os.environ.get(NAMED_IN, "") if instance is None else instance
    if named:
        health.add(health_service(named))
