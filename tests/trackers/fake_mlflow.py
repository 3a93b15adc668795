"""A double of MLflow: the calls of its client that the exporter makes, on a server in memory.

It is harsher than the real one. Points are appended whatever there is, as in MLflow's file store, so a point that is
sent twice is doubled. `fail` is called before and after the effect of each call, and may raise: a server that is down,
a request whose answer is lost, a kill.
"""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.machinery import ModuleSpec
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

LARGEST = sys.float_info.max
"""What MLflow stores for an infinity."""
_NAME = re.compile(r"^[/\w.\- :]*$")


class MlflowException(Exception):  # noqa: N818 - its name there
    """As MLflow raises it."""

    def __init__(self, message: str, error_code: str = "INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.message, self.error_code = message, error_code


@dataclass(frozen=True)
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Param:
    key: str
    value: str


@dataclass(frozen=True)
class RunTag:
    key: str
    value: str


class ViewType(IntEnum):
    ALL = 3


@dataclass
class Run:
    """A run on the server."""

    experiment_id: str
    tags: dict[str, str]
    name: str
    start_time: int
    end_time: int | None = None
    status: str = "RUNNING"
    stage: str = "active"
    params: dict[str, str] = field(default_factory=dict)
    points: list[Metric] = field(default_factory=list)


@dataclass
class FakeServer:
    """What the server has, and how it fails."""

    experiments: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    fail: Callable[[str, str], None] = lambda _when, _call: None
    rejected: frozenset[str] = frozenset()
    """The names of points, parameters and tags that it takes in no request, though their form is allowed."""
    calls: int = 0
    _ids: Any = field(default_factory=lambda: count(1))

    def forget(self) -> None:
        """Loses everything, as a server with its database in memory does."""
        self.experiments.clear()
        self.runs.clear()

    def run_of(self, trial: int) -> Run:
        (run,) = [run for run in self.runs.values() if run.tags["headrace.trial"] == str(trial)]
        return run


class Page(list[Any]):
    token = None


class MlflowClient:
    """The client."""

    server: FakeServer

    def __init__(self, tracking_uri: str) -> None:
        if tracking_uri.startswith("foo:"):
            raise MlflowException(f"got unsupported URI '{tracking_uri}'. Supported are: http, https.")

    def search_experiments(self, view_type: int, filter_string: str) -> list[Any]:
        assert view_type == ViewType.ALL
        found = re.fullmatch(r"tags.`([\w.]+)` = '(\w+)'", filter_string)
        assert found is not None

        def search() -> list[Any]:
            return [one for one in self.server.experiments.values() if one.tags.get(found[1]) == found[2]]

        return self._call("search_experiments", search)

    def _by_name(self, name: str) -> Any:
        return next((one for one in self.server.experiments.values() if one.name == name), None)

    def get_experiment(self, experiment_id: str) -> Any:
        return self._call("get_experiment", lambda: self._experiment(experiment_id))

    def create_experiment(self, name: str, tags: dict[str, str]) -> str:
        def create() -> str:
            if self._by_name(name) is not None:
                raise MlflowException(f"Experiment(name={name}) already exists.", "RESOURCE_ALREADY_EXISTS")
            made = SimpleNamespace(
                name=name,
                tags=dict(tags),
                lifecycle_stage="active",
                experiment_id=str(next(self.server._ids)),
            )
            self.server.experiments[made.experiment_id] = made
            return str(made.experiment_id)

        return self._call("create_experiment", create)

    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        self._call("set_experiment_tag", lambda: self._experiment(experiment_id).tags.update({key: value}))

    def rename_experiment(self, experiment_id: str, new_name: str) -> None:
        self._call("rename_experiment", lambda: setattr(self._experiment(experiment_id), "name", new_name))

    def create_run(self, experiment_id: str, start_time: int, run_name: str, tags: dict[str, str]) -> Any:
        def create() -> Any:
            if self._experiment(experiment_id).lifecycle_stage != "active":
                raise MlflowException(
                    f"The experiment {experiment_id} must be in the 'active' state.",
                    "INVALID_PARAMETER_VALUE",
                )
            run_id = f"run{next(self.server._ids)}"
            self.server.runs[run_id] = Run(experiment_id, dict(tags), run_name, start_time)
            return self._shown(run_id)

        return self._call("create_run", create)

    def delete_run(self, run_id: str) -> None:
        self._call("delete_run", lambda: setattr(self._run(run_id), "stage", "deleted"))

    def search_runs(
        self, experiment_ids: list[str], run_view_type: int, max_results: int, page_token: str | None
    ) -> Any:
        assert (run_view_type, max_results, page_token) == (ViewType.ALL, 1000, None)

        def search() -> Page:
            self._experiment(experiment_ids[0])
            return Page(
                self._shown(run_id)
                for run_id, run in self.server.runs.items()
                if run.experiment_id == experiment_ids[0]
            )

        return self._call("search_runs", search)

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        return self._call(
            "get_metric_history", lambda: [one for one in self._run(run_id).points if one.key == key]
        )

    def update_run(self, run_id: str, status: str) -> None:
        self._call("update_run", lambda: setattr(self._active(run_id), "status", status))

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        def end() -> None:
            run = self._active(run_id)
            run.status, run.end_time = status, end_time

        self._call("set_terminated", end)

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        def reject(items: Any) -> None:
            for one in items:
                if one.key in self.server.rejected:
                    raise MlflowException(f"{one.key} is not taken.", "INVALID_PARAMETER_VALUE")

        def log() -> None:
            run = self._active(run_id)
            assert len(metrics) <= 1000
            assert len(params) <= 100
            assert len(tags) <= 100
            for one in (*metrics, *params, *tags):
                _check(one.key)
            reject(params)
            for param in params:
                if run.params.setdefault(param.key, param.value) != param.value:
                    raise MlflowException("Changing param values is not allowed.", "INVALID_PARAMETER_VALUE")
            self.server.fail("between", "log_batch")
            reject(metrics)
            run.points += [
                Metric(one.key, max(-LARGEST, min(LARGEST, one.value)) if not math.isnan(one.value) else one.value,
                       one.timestamp, one.step)
                for one in metrics
            ]  # fmt: skip
            self.server.fail("between", "log_batch")
            reject(tags)
            run.tags |= {tag.key: tag.value for tag in tags}

        self._call("log_batch", log)

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        self.server.calls += 1
        self.server.fail("before", name)
        result = effect()
        self.server.fail("after", name)
        return result

    def _experiment(self, experiment_id: str) -> Any:
        if experiment_id not in self.server.experiments:
            raise MlflowException(f"No Experiment with id={experiment_id} exists", "RESOURCE_DOES_NOT_EXIST")
        return self.server.experiments[experiment_id]

    def _run(self, run_id: str) -> Run:
        if run_id not in self.server.runs:
            raise MlflowException(f"Run with id={run_id} not found", "RESOURCE_DOES_NOT_EXIST")
        return self.server.runs[run_id]

    def _active(self, run_id: str) -> Run:
        run = self._run(run_id)
        if run.stage != "active":
            raise MlflowException(
                f"The run {run_id} must be in the 'active' state.", "INVALID_PARAMETER_VALUE"
            )
        return run

    def _shown(self, run_id: str) -> Any:
        run = self._run(run_id)
        return SimpleNamespace(
            info=SimpleNamespace(run_id=run_id, lifecycle_stage=run.stage),
            data=SimpleNamespace(tags=dict(run.tags)),
        )


def _check(name: str) -> None:
    bad = not _NAME.match(name) or any(part in ("", ".", "..") for part in name.split("/")) or len(name) > 250
    if bad:
        raise MlflowException(f"Invalid name: {name!r}", "INVALID_PARAMETER_VALUE")


def installed(server: FakeServer, patch: pytest.MonkeyPatch) -> None:
    """Puts the double in the place of the package, for the adapter that is imported next."""
    client = type("MlflowClient", (MlflowClient,), {"server": server})
    modules = {
        "mlflow": {"MlflowClient": client},
        "mlflow.entities": {
            "Metric": Metric,
            "Param": Param,
            "Run": Run,
            "RunTag": RunTag,
            "ViewType": ViewType,
        },
        "mlflow.exceptions": {"MlflowException": MlflowException},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)
    for adapter in ("headrace.track.mlflow_client", "headrace.track.mlflow_runs"):
        patch.setitem(
            sys.modules, adapter, ModuleType(adapter)
        )  # the end of the test undoes this, and the import
        del sys.modules[adapter]
