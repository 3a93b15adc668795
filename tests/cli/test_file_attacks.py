"""Files made to harm their reader: each gets one clear message, quickly, and in little memory.

The tests run the commands in this process, and the worst cases once more in a process with little memory. Run as a
program, this file runs each case that way and prints what was said.
"""

import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import user_files
from limited import limited
from tiers import processor_time
from user_files import raw, text

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
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{f'*a{k - 1},' * 10}]\n" for k in range(1, 10))
ROWS = "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,iteration_ms\n"
CURVES = "curve,step,seconds,value\n"


def bomb(path: Path) -> None:
    """A gigabyte of zeros in a megabyte."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))


def long_bomb(path: Path) -> None:
    """The same size in valid rows."""
    row = b"a,,1,0.5\n" * 100_000
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(CURVES.encode())
        for index in range(200):
            file.write(row.replace(b"a,", b"a%d," % index))


MEASURED = {
    "a field of a megabyte": (text(ROWS + '"' + "1" * 1_000_000), "is not CSV: field larger than"),
    "NaN": (text(ROWS + "nan," * 10 + "nan\n"), "has a number that is not positive .*:2"),
    "5,000 digits": (text(ROWS + "1," * 10 + "9" * 5000 + "\n"), "has a number that is not positive .*:2"),
    "nothing": (text(""), "holds no rows"),
}
RECORDED = {
    "a line of 2 MB": (text(CURVES + "a" * 2_000_000), "line 2: cannot be read: is longer than 1 MiB"),
    "a field of 200,000": (text(CURVES + '"' + "a" * 200_000), "field larger than"),
    "not UTF-8": (raw(CURVES.encode() + b"\xff\n"), "line 2: .*is not a UTF-8 text"),
    "an infinite step": (text(CURVES + "a,inf,1,0.5\n"), "line 2: has the step 'inf'"),
    "5,000 digits": (text(CURVES + f"a,{'9' * 5000},1,0.5\n"), "line 2: has the step "),
    "deep hyperparameters": (
        text("curve,step,seconds,value,hyperparameters\na,1,1,1," + "[" * 100_000 + "\n"),
        "line 2: has hyperparameters that are not JSON: it is nested too deeply",
    ),
}
ZIPPED = {
    "1 GB of zeros in 1 MB": (bomb, "line 1: cannot be read: is longer than 1 MiB"),
    "20,000,000 rows in 1 MB": (long_bomb, "line 1000002: has more than 1000000 reports"),
    "no gzip": (text("x"), "Not a gzipped file"),
    "half a gzip": (raw(gzip.compress(CURVES.encode() * 9)[:20]), "Compressed file ended|cannot be read"),
    "garbage in a gzip": (raw(gzip.compress(os.urandom(9999))[:12] + b"\xff" * 99), "cannot be read"),
}
ANY_FILE = {kind: user_files.ANY_FILE[kind] for kind in ("folder", "device without end", "1 GB", "not UTF-8")}
"""The others are in tests/client/test_user_files.py, and other YAML is in tests/spec/test_hostile_files.py."""
YAML = {
    "a billion laughs": (text(LAUGHS), "line .*its aliases repeat more than 100000 values"),
    "100,000 brackets": (text("a: " + "[" * 100_000), "line 1, .*nested deeper than 50 levels"),
    "10,000 unknown keys": (
        text(SOUND + "".join(f"k{i}: 1\n" for i in range(10_000))),
        "k0: is not a known key",
    ),
    "a tag for Python": (
        text(SOUND + 'retries: !!python/object/apply:os.system ["touch owned"]\n'),
        "retries: has the tag tag:yaml.org,2002:python/object/apply:os.system on line 8",
    ),
}
JSON = {"100,000 brackets": (text("[" * 100_000), "is not sound JSON: it is nested too deeply")}
READERS: dict[str, tuple[str, tuple[str, ...], dict]] = {
    "preview": ("f.yaml", ("preview", "{file}"), {**ANY_FILE, **YAML}),
    "run": ("f.yaml", ("run", "{file}"), YAML),
    "check": ("f.yaml", ("check", "{file}"), YAML),
    "plan": ("f.json", ("plan", "gpt3-175b", "{file}"), {**ANY_FILE, **JSON}),
    "plan's model": ("f.json", ("plan", "{file}", "a100-64"), JSON),
    "calibrate": ("f.csv", ("plan", "calibrate", "{file}"), {**ANY_FILE, **MEASURED}),
    "simulate": (
        "f.csv",
        ("simulate", "{study}", "--curves", "{file}", "--curve-steps", "column"),
        {**ANY_FILE, **RECORDED},
    ),
    "simulate, zipped": ("f.csv.gz", ("simulate", "{study}", "--curves", "{file}"), ZIPPED),
    "a certificate": ("f.pem", ("--address", "tls://localhost:1", "studies"), ANY_FILE),
}
CASES = [
    pytest.param(command, name, id=f"{command}-{name}")
    for command, (_, _, cases) in READERS.items()
    for name in cases
    if (command, name) != ("a certificate", "not UTF-8")
]


def prepare(command: str, name: str, place: Path) -> dict[str, str]:
    """Makes the file; returns the environment for the command."""
    file = place / READERS[command][0]
    READERS[command][2][name][0](file)
    (place / "sound.yaml").write_text(SOUND)
    certificate = {"HEADRACE_TLS_CA": str(file)} if command == "a certificate" else {}
    return {**certificate, "HEADRACE_HOME": str(place / "home"), "COLUMNS": "500"}


def words(command: str, place: Path) -> list[str]:
    file, study = place / READERS[command][0], place / "sound.yaml"
    return [word.format(file=file, study=study) for word in READERS[command][1]]


def attack(command: str, name: str, place: Path) -> tuple[int, str, float]:
    """Runs the command on the file, with little memory; returns its exit code, its message, and the seconds that
    it took."""
    environ = {**os.environ, **prepare(command, name, place)}
    began = time.monotonic()
    done = subprocess.run(
        limited(MEMORY_BYTES, sys.executable, "-m", "headrace.cli", *words(command, place)),
        env=environ,
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stderr, time.monotonic() - began


def check(command: str, name: str, place: Path, code: int, said: str) -> None:
    assert code in (1, 2), said
    assert "Traceback" not in said
    assert "headrace itself failed" not in said
    assert len(said) < 20_000
    assert re.search(READERS[command][2][name][1], " ".join(said.split())), said[:500]
    assert not (place / "owned").exists()


@pytest.mark.cases(10)
@pytest.mark.parametrize(("command", "name"), CASES)
def test_it_is_refused_soon_and_in_little_memory(
    command: str, name: str, tmp_path: Path, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in prepare(command, name, tmp_path).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with processor_time(at_most_s=20):
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
