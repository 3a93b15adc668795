"""The part of Ray that a launch uses: named actors in one namespace. Everything that imports `ray` is here."""

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from headrace.client.missing import MissingExtraError
from headrace.launch.engine import EngineError
from headrace.launch.ray.worker import Seat, Worker

NAMESPACE: Final = "headrace"
CALL_S: Final = 20.0
_PROBE_S: Final = 2.0
_EXIT_S: Final = 10.0
"""How long Ray may take to end an actor that asked for it."""


class SeatActor:
    """A seat as an actor, which ends with its worker: that frees its name and its resources."""

    def __init__(self, worker: Worker, prefix: str) -> None:
        import ray

        self._ray = ray
        context = ray.get_runtime_context()
        actor = context.get_actor_id()
        assert actor is not None
        self._actor_name = context.get_actor_name()
        self._seat = Seat(worker, f"{prefix}-{short(actor)}", over=self._end)

    def _end(self, status: int) -> None:
        with suppress(Exception):  # an exit of the process by itself is an error in Ray's log
            self._ray.kill(self._ray.get_actor(self._actor_name, namespace=NAMESPACE))
            time.sleep(_EXIT_S)  # until Ray has killed this process
        os._exit(status)

    def awaits_token(self) -> bool:
        """Whether its worker has not started for want of a token."""
        return self._seat.awaits_token()

    def give(self, token: str) -> bool:
        """Takes the token; False if it has another one."""
        return self._seat.give(token)


def short(actor: str) -> str:
    """The part of an actor's id that tells it from others; the rest is its job's."""
    return actor[:12]


class RayCluster:
    """A connection to a cluster of Ray. Implements `engine.Actors`."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def names(self) -> Sequence[str]:
        """The actors of the namespace that have not ended, also those that have not started."""
        with _told():
            found = self._ray.util.list_named_actors(all_namespaces=True)
        return [one["name"] for one in found if one["namespace"] == NAMESPACE]

    def create(self, name: str, worker: Worker, prefix: str, *, cpus: float, gpus: float) -> bool:
        """Requests an actor; False if there is one of this name."""
        actor = self._ray.remote(SeatActor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            max_concurrency=4,
            num_cpus=cpus,
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
        )
        with _told():
            try:
                actor.remote(worker, prefix)
            except ValueError as error:  # ActorAlreadyExistsError is one, from Ray 2.44 on
                if "already taken" not in str(error):
                    raise
                return False
        return True

    def identity(self, name: str) -> str | None:
        """An actor's id; None if it has ended."""
        with _told():
            try:
                return str(self._ray.get_actor(name, namespace=NAMESPACE)._actor_id.hex())  # no other way
            except ValueError:
                return None

    def awaiting(self, names: Collection[str]) -> Mapping[str, bool]:
        """Whether the worker of each of these actors waits for a token. Those that have not started, have ended or do
        not answer are left out. All are asked at once: an actor that has no node does not answer.
        """
        asked: dict[Any, str] = {}
        found: dict[str, bool] = {}
        with _told():
            for name in names:
                with suppress(ValueError):  # it has ended
                    asked[self._ray.get_actor(name, namespace=NAMESPACE).awaits_token.remote()] = name
            if not asked:
                return found
            answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=_PROBE_S)
            for answer in answered:
                with suppress(*self._unanswered):
                    found[asked[answer]] = bool(self._ray.get(answer))
        return found

    def give(self, name: str, token: str) -> bool:
        """Gives it a token; False if it has another one or has ended. Raises EngineError without an answer."""
        with _told():
            try:
                actor = self._ray.get_actor(name, namespace=NAMESPACE)
                return bool(self._ray.get(actor.give.remote(token), timeout=CALL_S))
            except (ValueError, self._ray.exceptions.ActorDiedError):
                return False
            except self._unanswered:
                raise EngineError(
                    f"The actor {name} does not answer.", remedy="The next turn tries again."
                ) from None

    @property
    def _unanswered(self) -> tuple[type[Exception], ...]:
        errors = self._ray.exceptions
        return errors.GetTimeoutError, errors.ActorUnavailableError, errors.ActorDiedError


@contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """A connection, until the end of the block. Raises EngineError, and MissingExtraError without Ray."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError.of("launch ray", "ray", error.name) from None
    with _told():
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


@contextmanager
def _told() -> Iterator[None]:
    """Ray's own errors, which have many classes, as an EngineError."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise EngineError(
            f"Ray did not do what was asked: {text}", remedy="`ray status` shows whether the cluster works."
        ) from error
