"""Does a tier find faults? Puts those of `faults.toml` into a copy of this checkout, one at a time, and runs the tests.

For each fault it runs the test files that are nearest to the fault's file by imports, until a test fails; if none does,
the whole tier. A copy has an environment of its own, which uses the libraries of this one.

    python tests/faults/find_faults.py --tier first [--out found.json] [NAME ...]

With `--confirm FOUND` the tests that found a fault before run first. They take seconds, all others minutes.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from affected import Tree  # noqa: E402

TREE = Tree()
SOURCE_ROOTS = ("clients/python", "services", "worker")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
NEAREST = 40
LONGEST_S = 1500
"""For the tests of one fault; a fault that makes them hang counts as found, too."""


@dataclass(kw_only=True)
class Fault:
    """A mistake: in `file`, `old` became `new`."""

    name: str
    area: str
    kind: str
    file: str
    old: str
    new: str
    says: str


@dataclass(kw_only=True)
class Found:
    """What the tests showed about a fault."""

    name: str
    area: str
    by: list[str] = field(default_factory=list)
    took_s: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults; all where none is named")
    parser.add_argument("--faults", type=Path, default=Path(__file__).with_name("faults.toml"))
    parser.add_argument("--tier", choices=("first", "full"), default="first")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found, written after each fault")
    parser.add_argument(
        "--confirm", type=Path, help="an earlier --out: the tests that found a fault run first"
    )
    options = parser.parse_args()

    faults = [Fault(**one) for one in tomllib.loads(options.faults.read_text())["fault"]]
    earlier = (
        {one["name"]: one["by"] for one in json.loads(options.confirm.read_text())} if options.confirm else {}
    )
    results = []
    with copied() as copy:
        for fault in faults:
            if options.names and fault.name not in options.names:
                continue
            result = look_for(fault, copy, options.tier, earlier.get(fault.name, []))
            results.append(result)
            print(
                f"{fault.area:8} {fault.name:45} {result.took_s:6.0f} s  {', '.join(result.by) or 'NOT FOUND'}",
                flush=True,
            )
            if options.out:
                options.out.write_text(json.dumps([asdict(one) for one in results], indent=1))
    found = sum(bool(one.by) for one in results)
    print(f"{found} of {len(results)} faults found by the tier {options.tier}")
    return 0


@contextmanager
def copied() -> Iterator[Path]:
    """A clone with the uncommitted changes, and an environment of its own that uses this one's libraries."""
    with tempfile.TemporaryDirectory(prefix="hr-faults-") as folder:
        Path(folder).chmod(0o755)  # another user's trials read it
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(copy)], check=True)
        listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
        for name in filter(None, subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, copy / name)
            else:
                (copy / name).unlink()
        _commit(copy)
        _give_environment(copy)
        yield copy


def _commit(copy: Path) -> None:
    who = ("-c", "user.name=faults", "-c", "user.email=faults@localhost")
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "copied"], cwd=copy, check=True)


def _give_environment(copy: Path) -> None:
    venv.create(copy / ".venv", symlinks=True)
    site = next((copy / ".venv/lib").glob("python*")) / "site-packages"
    roots = [str(copy / root) for root in SOURCE_ROOTS]
    (site / "copy.pth").write_text("\n".join([*roots, sysconfig.get_path("purelib")]) + "\n")
    bin_folder = Path(sys.executable).parent
    for script in bin_folder.iterdir():
        there = copy / ".venv/bin" / script.name
        if script.is_file() and not script.is_symlink() and not there.exists():
            there.write_bytes(script.read_bytes().replace(os.fsencode(bin_folder), os.fsencode(there.parent)))
            there.chmod(0o755)


def look_for(fault: Fault, copy: Path, tier: str, earlier: Sequence[str]) -> Found:
    if (copy / fault.file).read_text().count(fault.old) != 1:
        raise SystemExit(
            f"{fault.name}: `old` is not exactly once in {fault.file}: the code has changed, so the fault must too"
        )
    began = time.monotonic()
    known = sorted(one for one in earlier if (copy / one.partition("::")[0]).is_file())
    tries = [["-n", "0", *known]] if known else []
    tries += [["-n", "0", *nearest(fault.file)], ["-n", "3", "--dist", "worksteal"]]
    found: list[str] = []
    while tries and not found:
        found = finders(fault, copy, tier, tries.pop(0))
    return Found(name=fault.name, area=fault.area, by=found, took_s=time.monotonic() - began)


def finders(fault: Fault, copy: Path, tier: str, arguments: Sequence[str]) -> list[str]:
    """The tests that fail with the fault, and pass without it."""
    path = copy / fault.file
    sound = path.read_text()
    path.write_text(sound.replace(fault.old, fault.new))
    try:
        found = run(copy, tier, *arguments)
    finally:
        path.write_text(sound)
    names = [one for one in found if not one.startswith("(")]
    anyway = run(copy, tier, "-n", "0", *names) if names else []
    return [one for one in found if one not in anyway]


def nearest(file: str) -> list[str]:
    """The test files that are nearest by imports; among equals, those named like the file's package come first."""
    distances = TREE.touched_by([file])
    package = PurePosixPath(file).parts

    def rank(path: Path) -> tuple[int, bool, str]:
        return distances[path], path.parent.name not in package, path.name

    return [str(path.relative_to(ROOT)) for path in sorted(distances, key=rank)[:NEAREST]]


def run(copy: Path, tier: str, *arguments: str) -> list[str]:
    """The tests that failed."""
    command = [
        "pytest",
        "-q",
        "-rfE",
        "-x",
        "-o",
        "timeout=90",
        "--tier",
        tier,
        *arguments,
    ]
    bin_folder = copy / ".venv/bin"
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {"OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "400", "VIRTUAL_ENV": str(copy / ".venv")}
    with tempfile.TemporaryFile("w+") as said:
        try:
            done = subprocess.run(
                command, cwd=copy, env=env, stdout=said, stderr=said, timeout=LONGEST_S, check=False
            )
        except subprocess.TimeoutExpired:
            return ["(it hangs)"]
        said.seek(0)
        printed = said.read()
    found = FAILED.findall(printed)
    if done.returncode not in (0, 4, 5) and not found:  # 4: an earlier test no longer exists
        return [f"(exit status {done.returncode}) {printed[-300:]}"]
    return found


if __name__ == "__main__":
    sys.exit(main())
