"""What a launch calls of Ray, over a double of its module. A real cluster is in test_ray_cluster.py."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.launch.engine import EngineError
from headrace.launch.ray.cluster import RayCluster


class ActorDiedError(Exception):
    pass


class ActorUnavailableError(Exception):
    pass


class GetTimeoutError(Exception):
    pass


class Module:
    """Ray, with actors that answer, have not started, or have died."""

    exceptions = SimpleNamespace(
        ActorDiedError=ActorDiedError,
        ActorUnavailableError=ActorUnavailableError,
        GetTimeoutError=GetTimeoutError,
    )

    def __init__(self, answers: dict[str, object]) -> None:
        self._answers = answers
        self.waited_s = 0.0

    def get_actor(self, name: str, *, namespace: str) -> Any:
        assert namespace == "headrace"
        if name not in self._answers:
            raise ValueError(name)
        method = SimpleNamespace(remote=lambda *_: name)
        return SimpleNamespace(awaits_token=method, give=method)

    def wait(self, refs: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert num_returns == len(refs)
        ready = [ref for ref in refs if self._answers[ref] is not None]
        self.waited_s += 0.0 if len(ready) == len(refs) else timeout
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: str, *, timeout: float | None = None) -> object:
        answer = self._answers[ref]
        if answer is None:
            assert timeout is not None
            self.waited_s += timeout
            raise GetTimeoutError
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_actors_that_have_not_started_are_waited_for_together() -> None:
    pending = {f"pending-{number}": None for number in range(20)}
    module = Module({**pending, "waits": True, "has-one": False, "died": ActorDiedError()})
    found = RayCluster(module).awaiting([*pending, "waits", "has-one", "died", "gone"])
    assert found == {"waits": True, "has-one": False}
    assert module.waited_s <= 2
    assert RayCluster(module).awaiting([]) == {}


def test_a_token_is_given_to_an_actor_that_answers() -> None:
    module = Module({"takes": True, "has-another": False, "died": ActorDiedError(), "silent": None})
    given = RayCluster(module)
    names = ("takes", "has-another", "died", "gone")
    assert [given.give(name, "hr_x") for name in names] == [True, False, False, False]
    with pytest.raises(EngineError, match="silent does not answer"):
        given.give("silent", "hr_x")
