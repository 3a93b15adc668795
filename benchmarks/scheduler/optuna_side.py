"""Optuna's side of the comparison: its cycle, its storages, its proxy, and pre-filled studies."""

import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import optuna
import psutil
import psycopg
from one_cycle import HIGH, LOSS, LOW, PARAMETERS, STEPS, Cycle
from optuna.storages import BaseStorage
from sqlalchemy import make_url


def rdb_storage(url: str) -> BaseStorage:
    """Optuna on a database."""
    return optuna.storages.RDBStorage(url)


def proxy_storage(address: str) -> BaseStorage:
    """Optuna on its gRPC proxy."""
    host, _, port = address.rpartition(":")
    return optuna.storages.GrpcStorageProxy(host=host, port=int(port))


def serve_proxy(url: str, port: str) -> None:
    """Act as the proxy."""
    optuna.storages.run_grpc_proxy_server(rdb_storage(url), host="127.0.0.1", port=int(port))


def optuna_cycle(storage: BaseStorage, name: str) -> Cycle:
    """Ask, report three times, tell, in Optuna's terms."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(
        study_name=name,
        storage=storage,
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    )

    def cycle() -> None:
        trial = study.ask()
        for parameter in PARAMETERS:
            trial.suggest_float(parameter, LOW, HIGH)
        for step in STEPS:
            trial.report(LOSS, step)
            assert not trial.should_prune()
        study.tell(trial, LOSS)

    return cycle


def of_optuna(url: str) -> str:
    """The same server with a database of its own, in SQLAlchemy's spelling."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE DATABASE optuna")
    return make_url(url).set(drivername="postgresql+psycopg", database="optuna").render_as_string(False)


@contextmanager
def optuna_proxy(command: Sequence[str], url: str, port: int) -> Iterator[tuple[str, psutil.Process]]:
    """Optuna's gRPC proxy in a process of its own: a command that calls `serve_proxy` with its arguments."""
    process = subprocess.Popen([*command, url, str(port)])
    try:
        for _ in range(200):
            try:
                proxy_storage(f"127.0.0.1:{port}").get_all_studies()
                break
            except Exception:  # noqa: BLE001  # not there yet
                time.sleep(0.1)
        yield f"127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def fill_optuna(storage: str, name: str, trials: int) -> None:
    """Give a study complete trials as its cycles leave them: a cycle makes the first, and the others are copies of
    it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(study_name=name, storage=storage, direction="minimize")
    if not trials:
        return
    optuna_cycle(rdb_storage(storage), name)()
    study = optuna.load_study(study_name=name, storage=storage)
    (like,) = study.trials
    assert like.intermediate_values == dict.fromkeys(STEPS, LOSS)
    for _ in range(trials - 1):
        study.add_trial(
            optuna.create_trial(
                params={parameter: random.uniform(LOW, HIGH) for parameter in PARAMETERS},
                distributions=like.distributions,
                intermediate_values=like.intermediate_values,
                system_attrs=like.system_attrs,  # the pruner's data
                value=like.value,
            )
        )
