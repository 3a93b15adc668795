"""Files made to hurt who reads them: each gets one clear message, soon, in little memory.

The tests run the commands in this process, and the worst cases once more in a process with little memory. Run as a
program, this file runs each case so and prints what was said.
"""

import gzip
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

MEMORY_BYTES = 2 << 30
"""Address space; a command that does nothing maps 1 GiB of libraries."""
SOUND = """name: s
objective: {metric: loss, goal: minimize}
trial: {callable: train:train}
space: {x: {type: float, low: 0, high: 1}}
policy: {kind: run_all}
trials: 1
steps: 1
"""
LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 10)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 2000))
ROWS = "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,iteration_ms\n"
CURVES = "curve,step,seconds,value\n"


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        before = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        listening.bind(path.name)
        os.chdir(before)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def gigabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: it costs no disk


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def raw(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def unreadable(path: Path) -> None:
    path.write_text(SOUND)
    path.chmod(0)


def bomb(path: Path) -> None:
    """A gigabyte of zeros in a megabyte."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))


def long_bomb(path: Path) -> None:
    """The same as sound rows."""
    row = b"a,,1,0.5\n" * 100_000
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(CURVES.encode())
        for index in range(200):
            file.write(row.replace(b"a,", b"a%d," % index))


ANY_FILE = {
    "folder": (folder, "is a folder"),
    "pipe": (pipe, "is a pipe, not a file"),
    "socket": (unix_socket, "is a socket or a device, not a file"),
    "device without end": (link_to("/dev/zero"), "is a device, not a file"),
    "terminal": (link_to("/dev/tty"), "is a (socket or a )?device, not a file"),
    "link to nothing": (link_to("/no/such/file"), "No such file or directory"),
    "links in a circle": (circle, "Too many levels of symbolic links"),
    "1 GB": (gigabyte, "is larger than"),
    "not UTF-8": (raw(b"a: 1\nb: \xff\xfe\n"), "line 2: .*is not a UTF-8 text: it has the byte 0xff"),
    "NUL": (raw(b"a: 1\nb: x\x00y\n"), r"line 2: .*has the control character U\+0000"),
    "escape sequence": (raw(b"a: \x1b[2J\n"), r"line 1: .*has the control character U\+001B"),
    "no rights": (unreadable, "Permission denied"),
}
YAML = {
    "a billion laughs": (text(LAUGHS), "line .*its aliases repeat more than 100000 values"),
    "an alias of itself": (text("a: &x [*x]\n"), "line 1, column 4: .*repeat themselves without end"),
    "aliases 2,000 deep": (text(CHAIN), "line .*aliases are nested deeper than 50 levels"),
    "100,000 brackets": (text("a: " + "[" * 100_000), "line 1, .*nested deeper than 50 levels"),
    "100,000 braces": (text("a: " + "{a: " * 100_000), "line 1, .*nested deeper than 50 levels"),
    "100,000 dashes": (text("a: \n" + "- " * 100_000), "line 2, .*nested deeper than 50 levels"),
    "100,000 question marks": (text("? " * 100_000), "line 1, .*nested deeper than 50 levels"),
    "a million values": (text("a: [" + "x," * 500_000), "line 1, .*more than 100000 values"),
    "10,000 unknown keys": (
        text(SOUND + "".join(f"k{i}: 1\n" for i in range(10_000))),
        "k0: is not a known key",
    ),
    "a tag for Python": (
        text(SOUND + 'retries: !!python/object/apply:os.system ["touch owned"]\n'),
        "retries: has the tag tag:yaml.org,2002:python/object/apply:os.system on line 8",
    ),
    "a tag of its own": (text(SOUND + "retries: !mine 3\n"), "retries: has the tag !mine"),
    "a key twice": (text(SOUND + "trials: 2\n"), "trials: stands twice, on lines 6 and 8"),
    "5,000 digits": (text(SOUND + f"retries: {'9' * 5000}\n"), "retries: "),
    "5,000 hexadecimal digits": (text(SOUND + f"retries: 0x{'f' * 5000}\n"), "retries: "),
    "an exponent of 5,000 digits": (text(SOUND + f"seed: 1e{'9' * 5000}\n"), "seed: "),
    "a name of a megabyte": (text(SOUND.replace("name: s", "name: " + "s" * 900_000)), "name: "),
    "an escape of no character": (text('a: "\\U00110000"\n'), "is not valid YAML"),
    "half a character": (text('name: "\\uD800"\n' + SOUND.partition("\n")[2]), "name: "),
    "a control character, escaped": (text('name: "a\\0b"\n' + SOUND.partition("\n")[2]), "name: "),
    "two documents": (text(SOUND + "---\n" + SOUND), "line 8, column 1: .*is not valid YAML"),
    "another version": (text("%YAML 9.9\n---\n" + SOUND), "line 1, column 1: .*is not valid YAML"),
    "a quote never closed": (text("a: '" + "x" * 900_000), "line 1, .*is not valid YAML"),
    "no mapping": (text("[]\n"), "the study file is not a mapping"),
    "nothing": (text(""), "the study file is not a mapping"),
}
JSON = {
    "100,000 brackets": (text("[" * 100_000), "is not sound JSON: it is nested too deeply"),
    "5,000 digits": (text('{"devices": %s}' % ("9" * 5000)), "it has a number of 5000 digits"),
    "a key twice": (text('{"devices": 1, "devices": 2}'), "the key 'devices' stands twice"),
    "NaN": (text('{"devices": NaN}'), "it has NaN, which JSON does not know"),
    "half an object": (text('{\n"devices": 1'), "line 2: is not JSON"),
    "a list": (text("[1]"), "must hold one JSON object"),
}
MEASURED = {
    "a field of a megabyte": (text(ROWS + '"' + "1" * 1_000_000), "is not CSV: field larger than"),
    "NaN": (text(ROWS + "nan," * 10 + "nan\n"), "has a number that is not positive .*:2"),
    "5,000 digits": (text(ROWS + "1," * 10 + "9" * 5000 + "\n"), "has a number that is not positive .*:2"),
    "nothing": (text(""), "holds no rows"),
}
RECORDED = {
    "a line of 2 MB": (text(CURVES + "a" * 2_000_000), "line 2: cannot be read: is longer than 1 MiB"),
    "a field of 200,000": (text(CURVES + '"' + "a" * 200_000), "field larger than"),
    "an infinite step": (text(CURVES + "a,inf,1,0.5\n"), "line 2: has the step 'inf'"),
    "5,000 digits": (text(CURVES + f"a,{'9' * 5000},1,0.5\n"), "line 2: has the step "),
    "deep hyperparameters": (
        text("curve,step,seconds,value,hyperparameters\na,1,1,1," + "[" * 100_000 + "\n"),
        "line 2: has hyperparameters that are not JSON: it is nested too deeply",
    ),
}
AFTER_A_HEADER = {
    name: (raw(CURVES.encode() + bytes_), ANY_FILE[name][1].replace("line 1", "line 2"))
    for name, bytes_ in (("not UTF-8", b"\xff\n"), ("NUL", b"\x00\n"), ("escape sequence", b"\x1b[2J\n"))
}
ZIPPED = {
    "1 GB of zeros in 1 MB": (bomb, "line 1: cannot be read: is longer than 1 MiB"),
    "20,000,000 rows in 1 MB": (long_bomb, "line 1000002: has more than 1000000 reports"),
    "no gzip": (text("x"), "Not a gzipped file"),
    "half a gzip": (raw(gzip.compress(CURVES.encode() * 9)[:20]), "Compressed file ended|cannot be read"),
    "garbage in a gzip": (raw(gzip.compress(os.urandom(9999))[:12] + b"\xff" * 99), "cannot be read"),
}
READERS: dict[str, tuple[str, tuple[str, ...], dict]] = {
    "preview": ("f.yaml", ("preview", "{file}"), {**ANY_FILE, **YAML}),
    "run": ("f.yaml", ("run", "{file}"), {name: YAML[name] for name in list(YAML)[:4]}),
    "check": ("f.yaml", ("check", "{file}"), {name: YAML[name] for name in list(YAML)[:4]}),
    "plan": ("f.json", ("plan", "gpt3-175b", "{file}"), {**ANY_FILE, **JSON}),
    "plan's model": ("f.json", ("plan", "{file}", "a100-64"), JSON),
    "calibrate": ("f.csv", ("plan", "calibrate", "{file}"), {**ANY_FILE, **MEASURED}),
    "simulate": (
        "f.csv",
        ("simulate", "{study}", "--curves", "{file}", "--curve-steps", "column"),
        {**ANY_FILE, **RECORDED, **AFTER_A_HEADER},
    ),
    "simulate, zipped": ("f.csv.gz", ("simulate", "{study}", "--curves", "{file}"), ZIPPED),
    "a certificate": ("f.pem", ("--address", "tls://localhost:1", "studies"), ANY_FILE),
}
TEXT_ONLY = {"not UTF-8", "NUL", "escape sequence"}
CASES = [
    pytest.param(command, name, id=f"{command}-{name}")
    for command, (_, _, cases) in READERS.items()
    for name in cases
    if not (command == "a certificate" and name in TEXT_ONLY)
]


def prepare(command: str, name: str, place: Path) -> dict[str, str]:
    """Makes the file; returns the environment that the command is to have."""
    file = place / READERS[command][0]
    READERS[command][2][name][0](file)
    (place / "sound.yaml").write_text(SOUND)
    certificate = {"HEADRACE_TLS_CA": str(file)} if command == "a certificate" else {}
    return {**certificate, "HEADRACE_HOME": str(place / "home"), "COLUMNS": "500"}


def words(command: str, place: Path) -> list[str]:
    file, study = place / READERS[command][0], place / "sound.yaml"
    return [word.format(file=file, study=study) for word in READERS[command][1]]


def attack(command: str, name: str, place: Path) -> tuple[int, str, float]:
    """Runs the command on the file, with little memory; its exit code, what it said, and seconds."""
    environ = {**os.environ, **prepare(command, name, place)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *words(command, place)],
        env=environ,
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    return done.returncode, done.stderr, time.monotonic() - began


def check(command: str, name: str, place: Path, code: int, said: str) -> None:
    assert code in (1, 2), said
    assert "Traceback" not in said
    assert "headrace itself failed" not in said
    assert len(said) < 20_000
    assert re.search(READERS[command][2][name][1], " ".join(said.split())), said[:500]
    assert not (place / "owned").exists()


@pytest.mark.cases(24)
@pytest.mark.parametrize(("command", "name"), CASES)
def test_it_is_refused_soon_and_in_little_memory(
    command: str, name: str, tmp_path: Path, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "no rights" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    for variable, value in prepare(command, name, tmp_path).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = invoke(*words(command, tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    check(command, name, tmp_path, result.code, result.err)


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("preview", "a billion laughs"),
        ("preview", "device without end"),
        ("plan", "1 GB"),
        ("simulate, zipped", "1 GB of zeros in 1 MB"),
        ("simulate, zipped", "20,000,000 rows in 1 MB"),
    ],
)
def test_it_is_refused_where_memory_is_short(command: str, name: str, tmp_path: Path) -> None:
    code, said, _ = attack(command, name, tmp_path)
    check(command, name, tmp_path, code, said)


if __name__ == "__main__":
    import tempfile

    rows = []
    for command, name in (case.values for case in CASES):
        with tempfile.TemporaryDirectory() as folder_name:
            code, said, seconds = attack(command, name, Path(folder_name))
            first = said.strip().splitlines()[0].replace(folder_name, "…")[:200] if said.strip() else ""
            rows.append(
                {"command": command, "file": name, "exit": code, "s": round(seconds, 1), "said": first}
            )
            print(json.dumps(rows[-1]), flush=True)
