"""Builds build/gpu-kit: everything that a machine with a GPU and a PyTorch image, but without a network, lacks to run
`make gpu`.

    gpu_kit.py PYTHON     the kit is for this interpreter's version, and for this machine's architecture

The kit has the wheels of Headrace and of its dependencies in the versions of .ci/constraints.txt, the tests that need
a GPU, the benchmarks, everything that these import, and run.sh. PyTorch, NumPy and SciPy are the image's own.
"""

import ast
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KIT: Final = ROOT / "build" / "gpu-kit"
BENCHMARKS: Final = ROOT / "benchmarks" / "gpu"
FOLDERS: Final = ("tests", "tests/gpu", "tests/hydro", "benchmarks/gpu", "benchmarks/hydro")
"""Where the kit's programs find modules that are not in a wheel."""
STARTED: Final = ("benchmarks/gpu/kit_run.py", "tests/gpu/conftest.py", "tests/tiers.py")
"""Programs and plugins that are started by name, in addition to the kit's parts."""
INSTALLED: Final = ("pytest", "pytest-asyncio", "pytest-timeout")
IMAGE: Final = ("torch", "numpy", "scipy")
"""What a PyTorch image has."""
GLIBC: Final = (2, 28)
MOST_BYTES: Final = 64_000_000


def main() -> None:
    """Builds the kit, and prints its size."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    python = sys.argv[1]
    version = said(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    least = PROJECT["requires-python"].removeprefix(">=")
    if numbers(version) < numbers(least):
        raise SystemExit(f"gpu-kit: {python} is Python {version}, and Headrace needs {least} or newer")
    shutil.rmtree(KIT, ignore_errors=True)
    wheels(python, KIT / "wheels")
    for path in sorted(files()):
        (KIT / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, KIT / path)
    shutil.copy2(BENCHMARKS / "run.sh", KIT / "run.sh")
    commit = said("git", "-C", str(ROOT), "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*")
    described = {
        "KIT_PYTHON": version,
        "KIT_MACHINE": platform.machine(),
        "KIT_GLIBC": ".".join(map(str, GLIBC)),
        "KIT_COMMIT": commit,
        "KIT_NEEDS": " ".join(needs()),
    }
    (KIT / "kit.env").write_text("".join(f"{name}='{value}'\n" for name, value in described.items()))
    size = sum(path.stat().st_size for path in KIT.rglob("*") if path.is_file())
    print(
        f"gpu-kit: {KIT.relative_to(ROOT)}, {size / 1e6:.1f} MB, for Python {version} on {platform.machine()}"
    )
    if size > MOST_BYTES:
        raise SystemExit(
            f"gpu-kit: {size} bytes are more than {MOST_BYTES}: leave something out (.ci/gpu_kit.py)"
        )


PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def needs() -> Iterator[str]:
    """What the image must have, as `name>=version`."""
    extras = PROJECT["optional-dependencies"]
    for requirement in {*extras["torch"], *extras["services"]}:
        if requirement.partition(">=")[0] in IMAGE:
            yield requirement


def wheels(python: str, folder: Path) -> None:
    """Builds Headrace's wheel and downloads the others, as exact versions; requirements.txt beside them lists all."""
    folder.mkdir(parents=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (headrace,) = folder.glob("headrace-*.whl")
    # Wheels for older systems too, and none that only this one can load.
    tags = [f"manylinux_{GLIBC[0]}_{minor}" for minor in range(GLIBC[1], 4, -1)]
    tags += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{platform.machine()}")]
    constraints = ("-c", str(ROOT / ".ci" / "constraints.txt"))
    options = ("--quiet", "--only-binary=:all:", *platforms, "-d", str(folder), *constraints)
    asked = f"headrace[services,worker] @ {headrace.as_uri()}"
    run(python, "-m", "pip", "download", *options, asked, *INSTALLED)
    listed = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if name in IMAGE:
            wheel.unlink()
        else:
            listed.append(f"{name}=={version}\n")
    (folder.parent / "requirements.txt").write_text("".join(listed))


def files() -> set[Path]:
    """The kit's programs and what they import, below the root."""
    programs = re.findall(r'program="([^"]+)"', (BENCHMARKS / "kit_parts.py").read_text(encoding="utf-8"))
    example = {path.relative_to(ROOT) for path in (ROOT / "examples" / "gpu").glob("*.[py]*")}
    found, waiting = {Path("pyproject.toml"), *example}, [Path(name) for name in (*STARTED, *programs)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported(ROOT / path)
    return found


def imported(path: Path) -> Iterator[Path]:
    """The modules of FOLDERS that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            yield from (
                Path(folder, f"{name}.py") for folder in FOLDERS if (ROOT / folder / f"{name}.py").exists()
            )


def numbers(version: str) -> tuple[int, ...]:
    """A version, to compare."""
    return tuple(map(int, version.split(".")))


def run(*command: str) -> None:
    """Runs a command; shows its errors."""
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
        raise SystemExit(f"gpu-kit: failed: {' '.join(command)}")


def said(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
