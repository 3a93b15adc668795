"""A client's driver as the harness sees it: a process that receives commands, and the outcome of each."""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent.parent / "clients"
ANSWER_S = 60.0
"""How long the harness waits for anything."""


class BrokenDriverError(AssertionError):
    """The driver is at fault, not the client."""


class NotReadyError(Exception):
    """A client cannot be driven here; the text says why."""


@dataclass(eq=False)
class Command:
    """A running command."""

    text: str
    items: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] | None = None
    news: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Its last line."""
        with self.news:
            if not self.news.wait_for(lambda: self.last is not None, timeout_s):
                raise BrokenDriverError(f"no answer in {timeout_s:g} s to {self.text[:300]}")
        assert self.last is not None
        if "broken" in self.last:
            raise BrokenDriverError(f"{self.last['broken']} (command {self.text[:300]})")
        return self.last

    def until(self, count: int, *, events: bool) -> None:
        """Waits for that many items, or events in them."""

        def came() -> int:
            return sum(len(item["cursors"]) for item in self.items) if events else len(self.items)

        with self.news:
            if not self.news.wait_for(lambda: came() >= count or self.last is not None, ANSWER_S):
                raise AssertionError(f"{came()} of {count} came in {ANSWER_S:g} s of {self.text[:300]}")
        assert came() >= count, f"{came()} of {count} came, and then {self.last}"


class Driver:
    """A running driver; a context manager."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command = command
        self._numbers = itertools.count(1)
        self._under_way: dict[int, Command] = {}

    def __enter__(self) -> "Driver":
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        hello = self.send("hello").answer()["ok"]
        self.lacks: dict[str, str] = hello["lacks"]
        self.version: str = hello["version"]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def send(self, op: str, *, args: dict[str, Any] | None = None, **more: Any) -> Command:
        """Sends a command; `more` are its other keys."""
        number = next(self._numbers)
        text = json.dumps({"id": number, "op": op, "args": args or {}, **more})
        command = self._under_way[number] = Command(text)
        command.number = number  # type: ignore[attr-defined]
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{text}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BrokenDriverError(f"{self.name}: the driver is gone ({self._process.poll()})") from error
        return command

    def cancel(self, command: Command) -> None:
        """Cancels a command."""
        self.send("cancel", args={"id": command.number}).answer()  # type: ignore[attr-defined]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told = json.loads(line)
                command = self._under_way[told["id"]]
            except (ValueError, KeyError, TypeError):
                print(f"{self.name} says what is no answer: {line.rstrip()[:300]}", file=sys.stderr)
                continue
            with command.news:
                if "item" in told:
                    command.items.append(told["item"])
                else:
                    command.last = told
                    del self._under_way[told["id"]]
                command.news.notify_all()
        gone = {"broken": f"the driver of {self.name} ended"}
        for command in list(self._under_way.values()):
            with command.news:
                command.last = gone
                command.news.notify_all()


def names() -> list[str]:
    """All clients: the two in Python, and each folder with a `conformance.sh`."""
    others = sorted(script.parent.name for script in CLIENTS.glob("*/conformance.sh"))
    return ["python-blocking", "python-asyncio", *others]


def driver(name: str) -> Driver:
    """The driver of a client. Raises NotReadyError if it cannot run here now."""
    kind = name.removeprefix("python-")
    if kind != name:
        return Driver(name, (sys.executable, str(HERE / "python_driver.py"), kind))
    run(name, "ready", 60)
    return Driver(name, (str(CLIENTS / name / "conformance.sh"), "driver"))


def trial_program(name: str) -> list[str]:
    """The command of a client's trial program."""
    if name.startswith("python-"):
        return [sys.executable, str(HERE / "python_trial.py")]
    return [str(CLIENTS / name / "conformance.sh"), "trial"]


def run(name: str, what: str, timeout_s: float) -> float:
    """Runs `conformance.sh WHAT` of a client and returns how long that took. Raises NotReadyError."""
    began = time.monotonic()
    script = CLIENTS / name / "conformance.sh"
    done = subprocess.run(
        (str(script), what), stderr=subprocess.PIPE, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"`{script.name} {what}` ends with {done.returncode}"]
        raise NotReadyError(lines[-1])
    return time.monotonic() - began
