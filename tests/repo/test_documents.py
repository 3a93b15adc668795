"""What the documents show is correct: study files load, Python compiles and imports, commands and options exist."""

import ast
import importlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from headrace.cli.app import build
from headrace.spec.file import parse_study_text

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fenced block of a document."""

    path: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def examples(language: str) -> list[Example]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            if block["language"] == language:
                line = text.count("\n", 0, block.start()) + 1
                found.append(Example(path=path, line=line, language=language, code=block["code"]))
    return found


@pytest.mark.parametrize("example", examples("yaml"), ids=str)
def test_a_study_file_loads(example: Example, tmp_path: Path) -> None:
    name, spec = parse_study_text(example.code, folder=tmp_path)
    assert name
    assert spec.rungs()[-1] == spec.max_steps


@pytest.mark.parametrize("example", examples("python"), ids=str)
def test_python_compiles_and_imports_what_there_is(example: Example) -> None:
    tree = ast.parse(example.code, filename=str(example))
    compile(tree, str(example), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headrace"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def command_lines() -> list[tuple[Example, str]]:
    """Every line of a shell example that runs headrace or make."""
    lines = []
    for example in examples("sh") + examples("console"):
        for line in example.code.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ").strip()
            if line.startswith(("headrace ", "make ")):
                lines.append((example, line))
    return lines


@pytest.mark.parametrize(("example", "line"), command_lines(), ids=lambda value: str(value)[:60])
def test_a_command_and_its_options_exist(
    example: Example, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_DATABASE_URL", "postgresql://headrace@db/headrace")  # as the pages say
    for certificate in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / certificate).touch()
    program, *arguments = shlex.split(re.sub(r" [<>] ?\S+", "", line), comments=True)  # no redirections
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
        return
    parse_command(arguments)


def parse_command(arguments: list[str]) -> None:
    """Parses a command line of headrace without running it; fails if a part of it does not exist."""
    before = ("", *arguments)
    name = next(
        word
        for word, last in zip(arguments, before, strict=False)
        if not word.startswith("-") and last != "--address"
    )
    command = typer.main.get_command(build(name)).commands[name]
    command.make_context(name, arguments[arguments.index(name) + 1 :])
