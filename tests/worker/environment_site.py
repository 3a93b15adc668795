"""Projects that ship code with requirements to one worker, and wheels that are built here."""

import asyncio
import hashlib
import io
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.code import read_folder, write_archive
from headrace.v1 import spec_pb2, worker_pb2
from headrace_worker.code_cache import CodeCache
from headrace_worker.environments import Environments
from headrace_worker.programs import Programs
from headrace_worker.run_as import OtherUser

WHEEL = "tinylib-1.0-py3-none-any.whl"
UV = shutil.which("uv")
needs_uv = pytest.mark.skipif(UV is None, reason="no uv on the path")
BACKEND = """
import zipfile
NAME, VERSION, WORD = {name!r}, {version!r}, {word!r}
def get_requires_for_build_wheel(settings=None):
    return []
def build_wheel(folder, settings=None, metadata=None):
{before}
    made, info = f"{{NAME}}-{{VERSION}}-py3-none-any.whl", f"{{NAME}}-{{VERSION}}.dist-info"
    tags = "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    with zipfile.ZipFile(f"{{folder}}/{{made}}", "w") as file:
        file.writestr(f"{{NAME}}.py", f"WORD = {{WORD!r}}\\n")
        file.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n")
        file.writestr(f"{{info}}/WHEEL", tags)
        file.writestr(f"{{info}}/RECORD", "".join(f"{{name}},,\\n" for name in file.namelist()))
    return made
"""


def wheel(folder: Path, name: str = "tinylib", version: str = "1.0", word: str = "first") -> Path:
    """Make a wheel with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(wheel_bytes(name, version, word))
    return path


def wheel_bytes(name: str = "tinylib", version: str = "1.0", word: str = "first") -> bytes:
    """A wheel's content: the same bytes for the same arguments."""
    info, out = f"{name}-{version}.dist-info", io.BytesIO()
    files = {
        f"{name}.py": f"WORD = {word!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(out, "w") as file:
        for path, text in files.items():
            file.writestr(zipfile.ZipInfo(path), text)
    return out.getvalue()


def project_folder(
    folder: str, name: str = "tinylib", version: str = "1.0", word: str = "first", before: str = "    pass"
) -> dict[str, str]:
    """The files of a package that is built from its folder; `before` runs during the build."""
    build = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    return {
        f"{folder}/pyproject.toml": f"{build}[project]\nname = {name!r}\nversion = {version!r}\n",
        f"{folder}/backend.py": BACKEND.format(name=name, version=version, word=word, before=before),
    }


class Worker:
    """The part of a daemon that prepares programs. It has no index unless `environ` names one, and uses pip unless
    it has uv."""

    def __init__(
        self,
        root: Path,
        tasks: asyncio.TaskGroup,
        environ: Mapping[str, str] | None = None,
        *,
        user: OtherUser | None = None,
        limit_bytes: int = 1 << 40,
    ) -> None:
        self.root = root
        self.folder = root / "environments"
        self.archives: dict[str, bytes] = {}
        self.printed: list[str] = []
        self.notes: list[str] = []
        basic = {"PATH": "/usr/bin:/bin", "HOME": str(root), "PIP_NO_INDEX": "1"}
        self.environments = Environments(self.folder, {**basic, **(environ or {})}, tasks, limit_bytes, user)
        (root / "code").mkdir(exist_ok=True)
        self.programs = Programs(CodeCache(root / "code", self._fetch, 1 << 30), self.environments)

    async def _fetch(self, digest: str, file: io.BytesIO) -> None:
        file.write(self.archives[digest])

    def ship(self, files: Mapping[str, str | bytes]) -> str:
        """Packs a folder with these files; returns its digest."""
        named = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
        root = self.root / "laptops" / named
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())
        folder, out = read_folder(root), io.BytesIO()
        write_archive(folder, out)
        self.archives[folder.manifest.digest] = out.getvalue()
        return folder.manifest.digest

    async def python(
        self,
        project: str,
        files: Mapping[str, str | bytes],
        *,
        name: str = "requirements.txt",
        python: str = "",
    ) -> Path:
        """The interpreter of a project's study that ships these files."""
        template = spec_pb2.TrialTemplate(working_dir="/nowhere", requirements=name, python=python)
        template.code.CopyFrom(spec_pb2.Code(ship=True, digest=self.ship(files)))
        assign = worker_pb2.Assign(template=template, project=project, study_uid="u")
        prepared = await self.programs.prepare(assign, self.notes.append, self.printed.append)
        assert prepared.python is not None
        self.programs.release(prepared)
        return prepared.python

    async def word(self, project: str, files: Mapping[str, str | bytes], **how: str) -> str:
        """What `tinylib` returns in the study of a project that ships these files."""
        return says(await self.python(project, files, **how), "import tinylib; print(tinylib.WORD)")


def says(python: Path, code: str) -> str:
    """What a program prints."""
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
