"""Which `headrace up` a server belongs to.

A request to an address may reach the server of another instance, which took the port a moment before. So a
launcher passes its servers a unique name in the environment, and they answer to a health check of that name.
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
        """It also answers for this name."""
        ...


def tell_instance(health: Healthy, instance: str | None = None) -> None:
    """Answers to checks of the instance: by default the one that the environment names, if it names one."""
    named = os.environ.get(NAMED_IN, "") if instance is None else instance
    if named:
        health.add(health_service(named))
