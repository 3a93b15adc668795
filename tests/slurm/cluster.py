"""A real Slurm on this machine: munge, slurmctld, and two slurmd as nodes n1 and n2.

    python tests/slurm/cluster.py start FOLDER     # prints the SLURM_CONF to export
    python tests/slurm/cluster.py stop FOLDER

Needs root, and Debian's packages slurmctld, slurmd, slurm-client and munge. Everything is in FOLDER: keys, state, logs,
sockets. No service of the machine is used or changed.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2")
CPUS = 4
"""Of each node. More than the machine may have: Slurm only counts them."""
READY_S = 60.0

CONF = """
ClusterName=headrace
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
MinJobAge=60
JobRequeue=1
MaxArraySize=1001
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
PartitionName=hidden Nodes={names} Hidden=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str:
    """Why no cluster can be started here; empty if one can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if missing:
        return (
            f"Slurm is not installed: {', '.join(missing)} missing (slurmctld, slurmd, slurm-client, munge)"
        )
    if os.geteuid():
        return "a Slurm cluster needs root"
    return ""


@dataclass(frozen=True)
class SlurmCluster:
    """One cluster, in its folder."""

    folder: Path

    @property
    def conf(self) -> Path:
        """The configuration, for SLURM_CONF."""
        return self.folder / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        """Variables for Slurm's commands."""
        return {"SLURM_CONF": str(self.conf), "PATH": _path()}

    def start(self) -> None:
        """Starts everything, and waits until both nodes take jobs. Raises RuntimeError with the logs if they do
        not.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(exist_ok=True)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.conf.write_text(self._configuration())
        munge = self.folder / "munge"
        self._run(
            *(
                "munged",
                "--force",
                "--num-threads",
                "2",
                "--key-file",
                str(key),
                "--seed-file",
                f"{munge}/seed",
            ),
            *("--socket", f"{munge}/socket", "--pid-file", f"{munge}/pid", "--log-file", f"{munge}/log"),
        )
        self._run("slurmctld", "-f", str(self.conf))
        for node in NODES:
            self._run("slurmd", "-f", str(self.conf), "-N", node)
        deadline = time.monotonic() + READY_S
        while self.run("sinfo", "--noheader", "--states=idle", "-o", "%D", check=False) != str(len(NODES)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes are not ready after {READY_S:g} s:\n{self.logs()}")
            time.sleep(0.2)  # slurmctld has no notification of nodes that register

    def stop(self) -> None:
        """Cancels all jobs, then ends the processes that `start` has started."""
        if self.conf.exists():
            self.run("scancel", "--user=root", "--full", check=False)
        pids = [self.folder / f"slurmd-{node}.pid" for node in NODES]
        for file in (*pids, self.folder / "slurmctld.pid", self.folder / "munge" / "pid"):
            _end(file)

    def run(self, *command: str, check: bool = True) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def logs(self) -> str:
        """The ends of the logs."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)

    def _configuration(self) -> str:
        host = socket.gethostname().partition(".")[0]
        controller, *ports = _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000"
            for node, port in zip(NODES, ports, strict=True)
        )
        return CONF.format(
            host=host, controller=controller, folder=self.folder, nodes=nodes, names=",".join(NODES)
        )

    def _run(self, *command: str) -> None:
        said = subprocess.run(
            command,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if said.returncode:
            raise RuntimeError(f"{' '.join(command)}: {said.stderr.strip() or said.stdout.strip()}")


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _end(file: Path) -> None:
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        pid = int(file.read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.1)  # not a child of ours, so it cannot be waited for


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["start", "stop"])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    if why := lacking():
        sys.exit(why)
    cluster = SlurmCluster(asked.folder.absolute())
    if asked.what == "start":
        cluster.start()
        print(f"export SLURM_CONF={cluster.conf}")
    else:
        cluster.stop()


if __name__ == "__main__":
    main()
