#!/usr/bin/env -S python3 -S -E
"""A control daemon of MPS without a GPU: a program that behaves as `nvidia-cuda-mps-control` by its documented
commands. `mps_client.py` is the other side, in place of CUDA.

    -d               starts the daemon: one for each pipe directory, with its process id in a file there
    (no option)      reads commands from the standard input, passes them to the daemon and prints the answers
    --server UID     what the daemon starts for a user; holds the clients

What a card does to its clients is modelled on NVIDIA's description of error containment: a fatal fault reaches all
clients of its card in the same words, the server refuses new clients until they are gone, and a client that is killed
with work in flight is such a fault. `double.json`, beside the program, injects failures of the daemon itself.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
PID_FILE = PIPE / "nvidia-cuda-mps-control.pid"
NOT_READY = "the MPS server is not ready to accept new MPS client requests"
RPC_FAILED = "the remote procedural call between the MPS server and the MPS client failed"
TERMINATED = "the MPS client has been terminated by the server"
KILLED = "unspecified launch failure"


def injected(name: str) -> object:
    """A failure that a test asks for."""
    with suppress(OSError, ValueError):
        return json.loads(Path(sys.argv[0]).with_name("double.json").read_text()).get(name)
    return None


def serve(path: Path, answer: Callable[[socket.socket], None]) -> socket.socket:
    """Listens at a path; every connection has its thread."""
    listener = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError):
        path.unlink()
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(64)

    def accept() -> None:
        while True:
            with suppress(OSError):
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def ask(path: Path, line: str) -> str:
    """One question to a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(f"{line}\n".encode())
        return connection.makefile().read()


class Server:
    """The clients of one user."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[int, dict[str, object]] = {}
        self.status = "ACTIVE"

    def answer(self, connection: socket.socket) -> None:
        """Serves the control daemon, one question at a time, or a client until it is gone."""
        pid, _ = peer(connection)
        lines = connection.makefile("r")
        first = lines.readline().split()
        if first and first[0] == "client":
            self.client(pid, first[1], connection, lines)
            return
        with connection, self.lock:
            connection.sendall(self.control(first).encode())

    def control(self, words: list[str]) -> str:
        match words:
            case ["clients"]:
                return "\n".join(map(str, self.clients))
            case ["status"]:
                return self.status
            case ["terminate", pid]:
                found = self.clients.get(int(pid))
                if found is None:
                    return "no such client"
                if found["stuck"]:
                    return "the client does not stop"
                found.update(error=TERMINATED, work=False)
                return ""
        return "?"

    def client(self, pid: int, card: str, connection: socket.socket, lines: TextIO) -> None:
        own: dict[str, object] = {"card": card, "error": "", "work": False, "stuck": False}
        with self.lock:
            self.clients[pid] = own
        with suppress(OSError):
            connection.sendall(b"ok\n")
            for line in lines:
                word, _, rest = line.strip().partition(" ")
                with self.lock:
                    if word == "launch":
                        own["work"] = True
                    elif word == "stick":
                        own.update(work=True, stuck=True)
                    elif word == "relent":
                        own.update(work=False, stuck=False)
                    elif word == "fault":
                        self.fault(card, rest)
                    elif word == "sync":
                        own["work"] = own["stuck"]
                    said = str(own["error"])
                connection.sendall(f"{said or 'ok'}\n".encode())
        with self.lock:
            del self.clients[pid]
            if own["work"] and not own["error"]:
                self.fault(card, KILLED)
            if not any(one["error"] for one in self.clients.values()):
                self.status = "ACTIVE"

    def fault(self, card: str, text: str) -> None:
        """Ends all work on a card, in the same words for everybody."""
        struck = [one for one in self.clients.values() if one["card"] == card]
        for one in struck:
            one["error"] = one["error"] or text
        self.status = "FAULT" if struck else self.status


class Control:
    """The daemon."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.servers: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}

    def living(self) -> dict[int, int]:
        """The servers, each with its user."""
        return {pid: uid for pid, (uid, process) in self.servers.items() if process.poll() is None}

    def start(self, uid: int) -> int:
        program = [sys.executable, "-S", "-E", sys.argv[0], "--server", str(uid)]
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, start_new_session=True)
        self.servers[process.pid] = (uid, process)
        ends_at = time.monotonic() + 10
        while not self.to(process.pid, "status") and process.poll() is None and time.monotonic() < ends_at:
            time.sleep(0.005)  # between two looks at a process that is starting
        return process.pid

    def answer(self, connection: socket.socket) -> None:
        _, uid = peer(connection)
        line = connection.makefile("r").readline().strip()
        with connection, suppress(OSError):
            if line.split()[:1] == [injected("hangs")]:
                time.sleep(600)  # longer than any test: it never answers
            if line.startswith("terminate_client") and injected("blocks"):
                self.lock.acquire()  # and never lets go: nothing else is answered either
                time.sleep(600)  # longer than any test
            with self.lock:
                said = self.command(line.split(), uid)
            connection.sendall(said.encode())

    def command(self, words: list[str], uid: int) -> str:
        living = self.living()
        match words:
            case ["connect"]:
                if any(other != uid and self.to(pid, "clients") for pid, other in living.items()):
                    return f"error {NOT_READY}"
                own = next((pid for pid, other in living.items() if other == uid), None) or self.start(uid)
                if self.to(own, "status") == "FAULT":
                    return f"error {NOT_READY}"
                return f"server {PIPE / f'server-{own}'}"
            case ["get_server_list"]:
                return "\n".join(map(str, living))
            case ["start_server", "-uid", number]:
                if injected("start_server"):
                    return f"error {injected('start_server')}"
                self.start(int(number))
                return ""
            case ["quit"]:
                for pid in living:
                    os.kill(pid, signal.SIGKILL)
                threading.Timer(0.02, self.leave).start()
                return ""
            case [command, number, *rest] if number.isdecimal() and int(number) in living:
                return self.server_command(command, int(number), rest)
        return f"error {' '.join(words)}: no such server or command"

    def server_command(self, command: str, server: int, rest: list[str]) -> str:
        match command, rest:
            case "get_client_list", []:
                return self.to(server, "clients")
            case "get_server_status", []:
                return str(injected("status") or self.to(server, "status"))
            case "terminate_client", [client]:
                said = self.to(server, f"terminate {client}")
                return said or "0"
            case "shutdown_server", ["-f"]:
                _, process = self.servers[server]
                process.kill()
                process.wait()
                (PIPE / f"server-{server}").unlink(missing_ok=True)
                return ""
        return f"error {command}: not known"

    def to(self, server: int, line: str) -> str:
        with suppress(OSError):
            return ask(PIPE / f"server-{server}", line)
        return ""

    def leave(self) -> None:
        for path in (PID_FILE, PIPE / "control", *PIPE.glob("server-*")):
            path.unlink(missing_ok=True)
        os._exit(0)


def daemon() -> int:
    if said := injected("refuses"):
        print(said)
        return 1
    lock = os.open(PIPE / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by the daemon as long as it runs
    except BlockingIOError:
        print("An instance of this daemon is already running")
        return 1
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        return 0 if os.read(ready, 1) else 1
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(ready)
    control = Control()
    serve(PIPE / "control", control.answer)
    PID_FILE.write_text(f"{os.getpid()}\n")
    os.write(done, b"x")
    os.close(done)
    while True:
        time.sleep(0.2)  # between two looks at whether the test is over
        if not PIPE.exists():  # the test is over
            for pid in control.living():
                os.kill(pid, signal.SIGKILL)
            return 0
        for _, process in list(control.servers.values()):
            process.poll()


def server() -> int:
    serve(PIPE / f"server-{os.getpid()}", Server().answer)
    if (uid := int(sys.argv[2])) != os.getuid():
        os.setuid(uid)
    while PIPE.exists():
        time.sleep(0.2)  # between two looks at whether the test is over
    return 0


def shell() -> int:
    status = 0
    for line in sys.stdin:
        try:
            said = ask(PIPE / "control", line.strip())
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        kind, _, text = said.partition(" ")
        if kind == "error":
            status, said = 1, text
        if said:
            print(said)
    return status


if __name__ == "__main__":
    sys.exit({"-d": daemon, "--server": server}.get((sys.argv[1:] or [""])[0], shell)())
