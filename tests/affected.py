"""`--changed`: runs the test files that a change affects, whatever their tier.

A change affects a test file if it is in a module that the file reaches by imports: its own, those of its conftests
and helpers, and those of the product. Things started by name count as imports too:
`python -m headrace_worker.shim`, the entry points that the command line loads, and a program or a data file that a
test names. A file that is no module (the Makefile, the documents) affects the tests that name it or its folder.
"""

import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "headrace": "clients/python",
    "headrace_services": "services",
    "headrace_worker": "worker",
    "headrace_torch": "worker",
}
EVERYTHING = (
    "pyproject.toml",
    ".ci/constraints.txt",
    "tests/conftest.py",
    "tests/tiers.py",
    "tests/affected.py",
)
"""A change of these affects every test."""
COMMAND_LINE = "headrace.cli.app"
"""Loads the other modules of its package by name."""
STARTS_SERVICES = "headrace_services.up"
"""Starts the services by the names of their commands."""
IMPORT = re.compile(r"^([ \t]*)(?:from|import) ([\w.]+)(?: import (\([^)]*\)|[^\n]*))?", re.MULTILINE)
STRING = re.compile(r"""["']([\w.][\w./:*-]{1,200})["']""")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed",
        nargs="?",
        const="",
        metavar="COMMIT",
        help="only test files that the changes since COMMIT touch, by import (--changed=COMMIT); without one, since "
        "the upstream branch was left, or uncommitted changes where there is no upstream",
    )


def pytest_configure(config: pytest.Config) -> None:
    since = config.getoption("--changed")
    if since is not None:
        changed = changed_files(since)
        config.stash[_CHOSEN] = chosen = Tree().touched_by(changed)
        config.stash[_SUMMARY] = f"changed: {len(changed)} files, which touch {len(chosen)} test files"


def pytest_report_header(config: pytest.Config) -> str | None:
    return config.stash.get(_SUMMARY, None)


@pytest.hookimpl(trylast=True)  # after the order of conftest.py
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests nearest to the change to the front."""
    chosen = config.stash.get(_CHOSEN, None)
    if chosen is not None:
        items.sort(key=lambda item: chosen[item.path])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    chosen = config.stash.get(_CHOSEN, None)
    if chosen is not None and collection_path.suffix == ".py" and collection_path not in chosen:
        return True
    return None


_CHOSEN = pytest.StashKey[dict[Path, int]]()
_SUMMARY = pytest.StashKey[str]()


def changed_files(since: str) -> list[str]:
    """The files that differ from a commit, relative to the repository, new ones included."""
    differ = _git("diff", "--name-only", "--no-renames", "-z", since or _where_it_began(), "--")
    new = _git("ls-files", "-z", "--others", "--exclude-standard")
    return sorted({name for name in (differ + new).split("\0") if name})


def _where_it_began() -> str:
    try:
        return _git("merge-base", "HEAD", "@{upstream}").strip()
    except subprocess.CalledProcessError:
        return "HEAD"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


class Tree:
    """What imports what, over the product, the tests, and the modules beside them that tests use."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def touched_by(self, changed: Iterable[str]) -> dict[Path, int]:
        """The test files that a change of these files affects, with the number of imports between the change and
        each file."""
        changed = list(changed)
        tests = {path for path in self._sources if path.name.startswith("test_")}
        if any(name in EVERYTHING for name in changed):
            return dict.fromkeys(tests, 1)
        distances = self._distances([self.root / name for name in changed])
        return {path: distances[path] for path in tests & distances.keys()}

    def _distances(self, changed: Iterable[Path]) -> dict[Path, int]:
        distances: dict[Path, int] = {}
        nearest, distance = set(changed), 0
        for path in changed:
            if path not in self._importers and not path.name.startswith("test_"):
                nearest |= set(self._naming(path))
        while nearest:
            distances |= dict.fromkeys(nearest, distance)
            further = {importer for path in nearest for importer in self._importers.get(path, ())}
            nearest, distance = further - distances.keys(), distance + 1
        return distances

    def _naming(self, changed: Path) -> Iterator[Path]:
        """The files that name a non-module file, or one of the folders that contain it. Its neighbours may use its
        bare name."""
        place = PurePosixPath(changed.relative_to(self.root))
        names = {
            str(folder) for folder in (place, *place.parents) if len(folder.parts) > 1 or folder == place
        }
        for path, constants in self._constants.items():
            if path.parent in changed.parents and not constants.isdisjoint(place.parts[-3:]):
                yield path
            if any(
                constant in names or ("/" in constant.strip("/") and place.match(constant))
                for constant in constants
            ):
                yield path
        if place.suffix == ".proto":
            yield self.root / PACKAGES["headrace"] / f"headrace/v1/{place.stem}_pb2.py"
        package = changed.parent / "__init__.py"  # a migration: Alembic finds it in its folder
        while not package.exists() and package.parent != self.root:
            package = package.parent.parent / "__init__.py"
        if package.exists():
            yield package

    @cached_property
    def _sources(self) -> dict[Path, str]:
        """The test files with their helpers, also those in `benchmarks/` and `.ci/`."""
        folders = (self.root / name for name in ("tests", "benchmarks", ".ci"))
        return {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}

    @cached_property
    def _constants(self) -> dict[Path, frozenset[str]]:
        """The strings in each test file and helper."""
        return {path: frozenset(STRING.findall(text)) for path, text in self._sources.items()}

    @cached_property
    def _importers(self) -> dict[Path, set[Path]]:
        """The direct importers of each module."""
        importers: dict[Path, set[Path]] = defaultdict(set)
        for importer, imported in (*self._edges_of_product(), *self._edges_of_tests()):
            importers[imported].add(importer)
        return importers

    @cached_property
    def _modules(self) -> dict[str, Path]:
        """The product's modules with their files."""
        modules = {}
        for name in self._graph.modules:
            place = self.root / PACKAGES[name.partition(".")[0]] / name.replace(".", "/")
            modules[name] = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        return modules

    @cached_property
    def _graph(self) -> grimp.ImportGraph:
        return grimp.build_graph(*PACKAGES, cache_dir=None)

    def _edges_of_product(self) -> Iterator[tuple[Path, Path]]:
        for name, path in self._modules.items():
            for imported in self._graph.find_modules_directly_imported_by(name):
                yield path, self._modules[imported]
            constants = STRING.findall(path.read_text())
            for constant in constants:  # `python -m`, or loaded by its name
                if (named := constant.partition(":")[0]) in self._modules and "." in named:
                    yield path, self._modules[named]
            if name.startswith(COMMAND_LINE.rpartition(".")[0]):
                yield self._modules[COMMAND_LINE], path
            if name.startswith(STARTS_SERVICES):
                yield from self._commands_in(path, constants)

    def _commands_in(self, path: Path, constants: Iterable[str]) -> Iterator[tuple[Path, Path]]:
        """The services that a file starts by the names of their commands."""
        for constant in constants:
            if constant in self._commands:
                yield path, self._modules[self._commands[constant]]

    @cached_property
    def _commands(self) -> dict[str, str]:
        """The module of each command that an entry point names."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text())["project"]
        return {
            name: target.partition(":")[0]
            for group in project["entry-points"].values()
            for name, target in group.items()
        }

    def _edges_of_tests(self) -> Iterator[tuple[Path, Path]]:
        helpers: dict[str, list[Path]] = defaultdict(list)
        for path in self._sources:
            if path.name != "conftest.py":
                helpers[path.stem].append(path)
        for path, text in self._sources.items():
            yield from self._commands_in(path, self._constants[path])
            # The imports of a conftest's fixtures count for the tests that use them, and they import these too.
            for name in imported(text, everywhere=path.name != "conftest.py"):
                if name in helpers:
                    yield from ((path, helper) for helper in helpers[name])
                elif name in self._modules:
                    yield path, self._modules[name]
            for constant in self._constants[path]:
                named, _, function = constant.partition(":")
                if named in self._modules and "." in named:
                    yield path, self._modules[named]
                if named.endswith(".py") or function.isidentifier():
                    programs = helpers.get(PurePosixPath(named).stem, ())
                    yield from ((path, one) for one in programs if not one.name.startswith("test_"))
            folder = path.parent
            while folder != self.root:
                if (folder / "conftest.py").exists() and path != folder / "conftest.py":
                    yield path, folder / "conftest.py"
                folder = folder.parent


def imported(text: str, *, everywhere: bool) -> Iterator[str]:
    """The names of modules that a file may import: everywhere, or at its top level alone."""
    for indent, module, names in IMPORT.findall(text):
        if everywhere or not indent:
            yield module
            yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))
