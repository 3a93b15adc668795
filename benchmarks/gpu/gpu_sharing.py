"""How processes share a card: each way yields the variables with which a process takes part in it.

Nothing here changes the card: neither its compute mode nor MIG, nor a control daemon that somebody else started.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headrace.grants import WHOLE
from headrace.mps import PIPE_DIRECTORY, Mode
from headrace.v1 import worker_pb2
from headrace_worker.devices import discover
from headrace_worker.mps import Mps, NotServedError, Users
from headrace_worker.mps_control import MpsControl

CONTROL = "nvidia-cuda-mps-control"
DRIVER = "/usr/local/nvidia/bin"
"""Where container runtimes put the driver's programs, which is not always on the path."""
# Ends the daemon when its input ends: with this program, however that ends.
KEEPER = '"$0" -d && echo started && read -r _; echo quit | "$0"'
QUIT_S = 30


class UnavailableError(RuntimeError):
    """This way of sharing does not exist on this machine."""


@contextmanager
def time_sliced() -> Iterator[Mapping[str, str]]:
    """Without MPS, also where a control daemon runs at the usual place."""
    with tempfile.TemporaryDirectory(prefix="hr-no-mps-") as empty:
        yield {"CUDA_MPS_PIPE_DIRECTORY": empty}


@contextmanager
def mps() -> Iterator[Mapping[str, str]]:
    """Under a control daemon of this program, with its pipes in a folder of its own.

    Raises:
        UnavailableError: there is no control daemon, or it does not start.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), DRIVER])
    program = shutil.which(CONTROL, path=path)
    if program is None:
        raise UnavailableError(f"there is no {CONTROL} on the path or in {DRIVER}; it comes with the driver")
    with tempfile.TemporaryDirectory(prefix="hr-mps-", ignore_cleanup_errors=True) as name:
        env = {f"CUDA_MPS_{kind.upper()}_DIRECTORY": str(Path(name, kind)) for kind in ("pipe", "log")}
        for folder in env.values():
            Path(folder).mkdir()
        keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, program],
            env={**os.environ, **env, "PATH": path},  # it starts the server by name
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a signal to this program's group must not end it first
        )
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            said = []
            while (line := keeper.stdout.readline()) != "started\n":
                said.append(line.strip())
                if not line:
                    raise UnavailableError(
                        f"{CONTROL} -d: {' '.join(said).strip() or 'ended without a message'}"
                    )
            yield env
        finally:
            keeper.stdin.close()
            keeper.wait(QUIT_S)
            keeper.stdout.close()


@contextmanager
def product() -> Iterator[Mapping[str, str]]:
    """As trials with a share of a card: through the MPS that a worker starts.

    Raises:
        UnavailableError: there is no card, or a worker could not use MPS here.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), DRIVER])
    user = os.geteuid()
    with (
        tempfile.TemporaryDirectory(prefix="hr-mps-", ignore_cleanup_errors=True) as name,
        asyncio.Runner() as runner,
    ):
        pipe = Path(name, "pipe")
        environ = {**os.environ, "PATH": path, PIPE_DIRECTORY: str(pipe)}
        devices = discover(worker="kit").devices
        cards = [one.index for one in devices if one.kind == worker_pb2.DEVICE_KIND_GPU]
        if not cards:
            raise UnavailableError("there is no GPU for a worker to offer")
        control = MpsControl(pipe, "kit", environ)
        users = Users(worker=user, trials=user)
        owner = Mps(Mode.ON, control, pipe=pipe, environ=environ, devices=devices, users=users)
        share = worker_pb2.Grant(slots=cards[:1], milli=WHOLE // 16)
        try:
            runner.run(owner.check())
            yield runner.run(owner.join("share", "the share", share))
        except (ValueError, NotServedError) as error:
            raise UnavailableError(str(error)) from error
        finally:
            runner.run(owner.close())


WAYS: dict[str, Callable[[], AbstractContextManager[Mapping[str, str]]]] = {
    "time-sliced": time_sliced,
    "mps": mps,
    "product": product,
}


def asked(description: str | None, words: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a benchmark of sharing: `device`, and `how` with one or more ways."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--how", choices=WAYS, action="append", required=True)
    return parser.parse_args(words)
