"""`make verify` finds what it should: each check is shown a fault that it must not accept."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUF = str(Path(sys.executable).parent / "buf")


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`.ci/documents.py` over a repository of its own in `tmp_path`."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location("documents", ROOT / ".ci/documents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return module


def test_a_link_to_nowhere_is_found_and_a_good_one_is_not(documents: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs/there.md").write_text("# There it is\n\n## `code` & more\n")
    (tmp_path / "README.md").write_text(
        "[good](docs/there.md#there-it-is) [too](docs/there.md#code--more) [far](https://example.org)\n"
        "[gone](docs/gone.md) [moved](docs/there.md#elsewhere)\n```\n[code](is/none)\n```\n"
    )
    assert list(documents.broken_links()) == [
        "README.md: docs/gone.md leads nowhere",
        "README.md: docs/there.md#elsewhere: no such heading",
    ]


def test_a_stale_part_is_found_and_rewritten(documents: ModuleType, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- generated: lifecycle-diagram -->\nold\n<!-- end generated -->\n")
    assert [problem.partition(":")[0] for problem in documents.stale_parts()] == ["README.md"]
    readme.write_text(documents.rewritten(readme.read_text()))
    assert "PENDING --> RUNNING: launch" in readme.read_text()
    assert list(documents.stale_parts()) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("home = '/{}/somebody/x'".format("home"), True),
        ("cd /{}/app".format("opt"), True),
        ("see https://{}.org/simple".format("pypi"), True),
        ("~/.headrace, {home}/logs and examples/home/x", False),
        ("https://example.org/home/page", False),
    ],
)
def test_a_name_of_one_machine_is_found(
    documents: ModuleType, tmp_path: Path, line: str, found: bool
) -> None:
    (tmp_path / "notes.txt").write_text(f"{line}\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "notes.txt"], check=True)
    assert bool(list(documents.machine_names())) is found


def buf_breaking(protos: Path) -> subprocess.CompletedProcess[str]:
    command = [BUF, "breaking", str(protos), "--against", str(ROOT / "protos/headrace.binpb")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_removed_field_breaks_the_contract_and_a_new_one_does_not(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    trial = tmp_path / "protos/headrace/v1/trial.proto"
    text = trial.read_text()
    trial.write_text(
        text.replace("  int64 number = 2;\n", "  int64 number = 2;\n  string novelty = 200;\n", 1)
    )
    assert buf_breaking(tmp_path / "protos").returncode == 0
    trial.write_text(text.replace("  int64 number = 2;\n", "", 1))
    broken = buf_breaking(tmp_path / "protos")
    assert broken.returncode != 0
    assert 'field "2" with name "number" on message "Trial" was deleted' in broken.stdout


def test_an_import_across_the_layers_is_refused(tmp_path: Path) -> None:
    """The rules are in pyproject.toml; here the scheduler imports `headrace up` in a copy of the sources."""
    for source in ("clients", "services", "worker", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / source)
    (tmp_path / "services/headrace_services/scheduler/intruder.py").write_text(
        "import headrace_services.up.home\n"
    )
    paths = ":".join(str(tmp_path / root) for root in ("clients/python", "services", "worker"))
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    checked = subprocess.run(
        [sys.executable, "-c", linter, "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode != 0
    assert "headrace_services.scheduler.intruder -> headrace_services.up.home" in checked.stdout
