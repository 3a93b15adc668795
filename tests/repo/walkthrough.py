"""Follows a document as its reader would: types each shell block, and saves each file that it shows.

This program knows only what the reader knows. It saves a file under the name in the sentence before it (`` Save
this as `train.py`: ``). It types a shell block line by line in the first terminal, or in a new one if the sentence
before says "second terminal". `headrace up` keeps its terminal. A command that fails ends the walk.
"""

import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FENCE: Final = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME: Final = re.compile(r"Save this as `(?P<name>[\w./-]+)`:\s*$")
SECOND: Final = re.compile(r"\bsecond terminal\b")
FILES: Final = ("python", "yaml")
PICTURES: Final = ("mermaid",)
SERVES: Final = "headrace up"
READY: Final = "Headrace is ready"
PROMPT: Final = f"done-{secrets.token_hex(4)}"
"""Printed after each command, with its exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block, and the paragraph before it."""

    language: str
    code: str
    before: str

    @property
    def file_name(self) -> str:
        """Where the reader saves it; fails if the document does not say."""
        named = FILE_NAME.search(self.before)
        assert named, f"the document does not say where to save this file:\n{self.code}"
        return named["name"]

    def commands(self) -> Iterator[str]:
        """The lines to type, without comments."""
        for line in self.code.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s#.*$", "", line).strip()
            if command and not command.startswith("#"):
                yield command


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a document in order."""
    for found in FENCE.finditer(text):
        before = text[: found.start()].rstrip().rpartition("\n\n")[2]
        yield Block(language=found["language"], code=found["code"], before=before)


class Terminal:
    """A shell that reads one command after another."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        commands, self._keyboard = os.pipe()
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", f"/dev/fd/{commands}"],
            pass_fds=[commands],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        os.close(commands)
        self.said: list[str] = []
        self._heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def type(self, command: str, *, until: str = PROMPT, deadline_s: float) -> str:
        """Types a command and returns its output; raises if the command fails."""
        begin = len(self.said)
        os.write(self._keyboard, f"{command}\necho {PROMPT} $?\n".encode())
        printed = self._hear(begin, until, deadline_s, command)
        if until != PROMPT:
            assert until in printed, f"`{command}` ended:\n{printed}"
            return printed
        output, _, status = printed.rpartition(PROMPT)
        assert status.split() == ["0"], f"`{command}` ended with exit code {status.strip()}:\n{output}"
        return output

    def interrupt(self, deadline_s: float) -> str:
        """Sends Ctrl-C to what runs in the foreground; returns what it printed then."""
        begin = len(self.said)
        os.killpg(self.process.pid, signal.SIGINT)
        return self._hear(begin, PROMPT, deadline_s, "Ctrl-C")

    def _hear(self, begin: int, until: str, deadline_s: float, command: str) -> str:
        """The output from line `begin` on, up to `until` or the end of the command."""
        with self._heard:
            answered = self._heard.wait_for(
                lambda: any(until in line or PROMPT in line for line in self.said[begin:]), deadline_s
            )
        printed = "".join(self.said[begin:])
        assert answered, f"`{command}` did not answer within {deadline_s} s; it printed:\n{printed}"
        return printed

    def close(self) -> None:
        """Ends the shell, and kills what still runs in it."""
        os.close(self._keyboard)
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.said.append(line)
                self._heard.notify_all()


class Walk:
    """One reader with one document, in a copy of the repository."""

    def __init__(
        self, folder: Path, env: dict[str, str], done: set[str], first: dict[str, str] | None = None
    ) -> None:
        """`first` says what to type before a command, because readers are not as quick as a test."""
        self._first = first or {}
        self._folder = folder
        self._env = env
        self._done = done  # not typed: the reader has already done it, or is doing it
        self._terminals = [Terminal(folder, env)]
        self._serving: Terminal | None = None
        self.printed: dict[str, str] = {}

    def follow(self, text: str, *, deadline_s: float) -> None:
        """Does everything that the document says."""
        try:
            for block in blocks(text):
                self._do(block, deadline_s)
            if self._serving is not None:
                assert "stopped" in self._serving.interrupt(60).lower()
        finally:
            for terminal in self._terminals:
                terminal.close()

    def _do(self, block: Block, deadline_s: float) -> None:
        match block.language:
            case "sh":
                self._type(block, deadline_s)
            case language if language in FILES:
                path = self._here(deadline_s) / block.file_name
                path.write_text(block.code, encoding="utf-8")
            case language:
                assert language in PICTURES, f"a reader cannot tell what this block is for:\n{block.code}"

    def _type(self, block: Block, deadline_s: float) -> None:
        terminal = self._terminals[0]
        serves = any(command.startswith(SERVES) for command in block.commands())
        if SECOND.search(block.before) or terminal is self._serving:
            terminal = Terminal(self._folder, self._env)
            self._terminals.insert(1 if serves else 0, terminal)
        for command in block.commands():
            if command.startswith(SERVES):
                terminal.type(command, until=READY, deadline_s=deadline_s)
                self._serving = terminal
            elif command not in self._done:
                if wait := self._first.get(command):
                    terminal.type(wait, deadline_s=deadline_s)
                self.printed[command] = terminal.type(command, deadline_s=deadline_s)

    def _here(self, deadline_s: float) -> Path:
        return Path(self._terminals[0].type("pwd", deadline_s=deadline_s).strip())
