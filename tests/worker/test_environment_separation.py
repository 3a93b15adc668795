"""No project chooses what another one imports, and nothing in the study's folder controls the installer."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import psutil
import pytest
from environment_site import UV, WHEEL, Worker, needs_uv, project_folder, says, wheel, wheel_bytes

from headrace_worker.code_cache import UnpreparedError

pytestmark = pytest.mark.full

EVIL, GOOD = wheel_bytes(word="evil"), wheel_bytes(word="good")
# Installs what another project would import, whatever is requested.
PIP = """
import pathlib, sys
for folder in pathlib.Path(sys.prefix).glob("lib/python*/site-packages"):
    (folder / "tinylib.py").write_text("WORD = 'evil'\\n")
"""


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Callable[..., Worker]]:
    """Makes a worker with `pip` or `uv`, and its administrator's index, which is empty at first."""
    (tmp_path / "index").mkdir()
    async with asyncio.TaskGroup() as tasks:

        def made(kind: str, **environ: str) -> Worker:
            index = {f"{kind.upper()}_FIND_LINKS": str(tmp_path / "index"), "UV_OFFLINE": "1"}
            path = f"{Path(UV or '').parent}:/usr/bin:/bin" if kind == "uv" else "/usr/bin:/bin"
            return Worker(tmp_path, tasks, {"PATH": path, **index, **environ})

        yield made


@pytest.fixture
def worker(workers: Callable[..., Worker]) -> Worker:
    return workers("pip")


@pytest.fixture
def uv_worker(workers: Callable[..., Worker]) -> Worker:
    return workers("uv")


both = pytest.mark.parametrize("kind", ["pip", pytest.param("uv", marks=needs_uv)])


async def test_a_folder_of_wheels_is_of_the_project_that_shipped_it(worker: Worker) -> None:
    text = "--no-index\n-f wheels\ntinylib\n"
    for project, content, word in (("mallory", EVIL, "evil"), ("alice", GOOD, "good")):
        files = {"requirements.txt": text, f"wheels/{WHEEL}": content}
        assert await worker.word(project, files) == word
    files = {"requirements.txt": text, f"wheels/{WHEEL}": EVIL}
    assert await worker.word("alice", files) == "evil", "of her own new code"


async def test_a_bare_wheel_is_of_the_project_that_shipped_it(worker: Worker) -> None:
    for project, content, word in (("mallory", EVIL, "evil"), ("alice", GOOD, "good")):
        assert await worker.word(project, {"requirements.txt": f"{WHEEL}\n", WHEEL: content}) == word
    files = {"requirements.txt": f"{WHEEL}\n", WHEEL: EVIL}
    assert await worker.word("alice", files) == "evil", "of her own new code"


async def test_a_pip_of_the_folder_is_not_run(worker: Worker, tmp_path: Path) -> None:
    wheel(tmp_path / "index", word="the index's")
    for project, more in (("mallory", {"pip.py": PIP}), ("alice", {})):
        assert await worker.word(project, {"requirements.txt": "tinylib\n", **more}) == "the index's", project


@needs_uv
async def test_a_uv_toml_of_the_folder_is_not_read(uv_worker: Worker, tmp_path: Path) -> None:
    wheel(tmp_path / "index", word="the index's")
    text = "tinylib\n"
    steers = {"uv.toml": 'no-index = true\nfind-links = ["wheels"]\n', f"wheels/{WHEEL}": EVIL}
    for project, more in (("mallory", steers), ("alice", {})):
        assert await uv_worker.word(project, {"requirements.txt": text, **more}) == "the index's"


HONEST = {
    "logging.py": "def getLogger(name):\n    raise SystemExit('of the study')\n",
    "pip.py": "raise SystemExit('of the study')\n",
    "sitecustomize.py": "raise SystemExit('of the study')\n",
    "pip/__main__.py": "raise SystemExit('of the study')\n",
    "setup.cfg": "[install]\nprefix = /nowhere\n[easy_install]\nfind_links = wheels\n",
    "pip.conf": "[global]\nindex-url = https://of.the.study/simple\n",
    "uv.toml": "index-url = 'https://of.the.study/simple'\nno-index = true\n",
    "pyproject.toml": "[tool.uv]\nno-index = true\nindex-url = 'https://of.the.study/simple'\n",
    ".python-version": "2.7\n",
    ".env": "PIP_INDEX_URL=https://of.the.study/simple\n",
}


@both
@pytest.mark.parametrize("text", ["tinylib\n", "-r base.txt\n", f"./wheels/{WHEEL}\n"])
async def test_what_a_folder_holds_neither_breaks_nor_steers_an_installer(
    kind: str, text: str, workers: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = workers(kind)
    wheel(tmp_path / "index", word="the index's")
    files = {
        "requirements.txt": text,
        "base.txt": "tinylib\n",
        f"wheels/{WHEEL}": wheel_bytes(word="shipped"),
    }
    word = await worker.word("alice", {**HONEST, **files})
    assert word == ("shipped" if "wheels" in text else "the index's")


@both
async def test_code_that_is_installed_is_of_the_code_that_was_shipped(
    kind: str, workers: Callable[..., Worker]
) -> None:
    worker = workers(kind)
    text = {"requirements.txt": "./mine\n"}
    for project, word in (("mallory", "evil"), ("alice", "good"), ("alice", "better")):
        assert await worker.word(project, {**text, **project_folder("mine", word=word)}) == word
    nested = {"requirements.txt": "-r base.txt\n", "base.txt": "-e ./mine\n", **project_folder("mine")}
    nested["mine/backend.py"] += "build_editable = build_wheel\n"
    with pytest.raises(UnpreparedError, match="editable install"):
        await worker.python("alice", nested)
    with pytest.raises(UnpreparedError, match="editable install"):
        await worker.python("alice", {**nested, "requirements.txt": "-e ./mine\n"})


async def test_wheels_that_are_shipped_are_told_by_their_content(worker: Worker) -> None:
    files = {"requirements.txt": f"wheels/{WHEEL}\n", f"wheels/{WHEEL}": GOOD, "train.py": "one"}
    first = await worker.python("alice", files)
    assert await worker.python("alice", {**files, "train.py": "two"}) == first
    assert await worker.python("alice", {**files, f"wheels/{WHEEL}": EVIL}) != first


@both
async def test_what_an_index_changed_meanwhile_is_not_taken_for_what_was_asked(
    kind: str, workers: Callable[..., Worker], tmp_path: Path
) -> None:
    worker, files = workers(kind, UV_NO_CACHE="1"), {"requirements.txt": "tinylib\n"}
    wheel(tmp_path / "index", word="first")
    first = await worker.python("alice", files)
    (first.parents[2] / "complete").unlink()
    wheel(tmp_path / "index", version="2.0", word="newer")
    assert await worker.word("alice", files) == "first", "as it was"
    (first.parents[2] / "complete").unlink()
    wheel(tmp_path / "index", word="another file of this version")
    assert await worker.word("alice", files) == "newer", "not those, so it is resolved again"


@needs_uv
async def test_no_environment_shares_a_file_with_the_cache(uv_worker: Worker, tmp_path: Path) -> None:
    wheel(tmp_path / "index", word="the index's")
    first = await uv_worker.python("mallory", {"requirements.txt": "tinylib\n"})
    (module,) = first.parents[1].glob("lib/python*/site-packages/tinylib.py")
    assert module.stat().st_nlink == 1
    module.write_text("WORD = 'evil'\n")
    assert await uv_worker.word("alice", {"requirements.txt": "tinylib\n"}) == "the index's"


async def test_what_a_build_leaves_running_ends_with_it(worker: Worker, tmp_path: Path) -> None:
    left = tmp_path / "left"
    stays = f"import os, time; open({str(left)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    before = (
        "    import subprocess, sys, time, os\n"
        f"    subprocess.Popen([sys.executable, '-c', {stays!r}], start_new_session=True, stdout=-3, stderr=-3)\n"
        f"    while not os.path.exists({str(left)!r}) or not os.path.getsize({str(left)!r}): time.sleep(0.01)\n"
    )
    await worker.python("alice", {"requirements.txt": "./mine\n", **project_folder("mine", before=before)})
    pid = int(left.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@both
async def test_settings_of_the_administrator_count_and_those_of_a_user_do_not(
    kind: str, tmp_path: Path
) -> None:
    wheel(tmp_path / "admin", word="the administrator's")
    wheel(tmp_path / "user", version="2.0", word="the user's")
    for owner, folder in (("admin", tmp_path / "etc"), ("user", tmp_path / ".config")):
        for name, text in (
            ("pip/pip.conf", f"[global]\nno-index = true\nfind-links = {tmp_path / owner}\n"),
            ("uv/uv.toml", f"no-index = true\nfind-links = ['{tmp_path / owner}']\n"),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    path = f"{Path(UV).parent}:/usr/bin:/bin" if kind == "uv" and UV else "/usr/bin:/bin"
    environ = {"PATH": path, "XDG_CONFIG_DIRS": str(tmp_path / "etc")}
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(tmp_path, tasks, environ)
        assert await worker.word("alice", {"requirements.txt": "tinylib\n"}) == "the administrator's"


async def test_a_repository_is_told_by_its_commit(worker: Worker, tmp_path: Path) -> None:
    def git(*args: str) -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(
            ["git", *settings, *args], cwd=tmp_path / "repository", check=True, capture_output=True
        )

    def commit(word: str) -> None:
        for path, text in project_folder("repository", word=word).items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)

    commit("first")
    git("init")
    for word in ("first", "second"):
        commit(word)
        git("add", ".")
        git("commit", "-m", word)
    text = f"git+file://{tmp_path}/repository@main#egg=tinylib\n"
    first = await worker.python("alice", {"requirements.txt": text})
    assert await worker.python("alice", {"requirements.txt": text, "train.py": "two"}) == first
    (lock,) = {path.read_text() for path in (worker.folder / "locks").iterdir()}
    assert re.fullmatch(rf"tinylib @ git\+file://{tmp_path}/repository@[0-9a-f]{{40}}\n", lock)


def locked_by_uv(tmp_path: Path, files: Mapping[str, str]) -> str:
    """The `uv.lock` of a project with these files."""
    for path, text in files.items():
        (tmp_path / "lock" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lock" / path).write_text(text)
    environ = {"UV_FIND_LINKS": str(tmp_path / "index"), "UV_OFFLINE": "1", "UV_PYTHON": sys.executable}
    subprocess.run(
        [str(UV), "lock"], cwd=tmp_path / "lock", check=True, capture_output=True, env=os.environ | environ
    )
    return (tmp_path / "lock" / "uv.lock").read_text()


@needs_uv
async def test_a_lock_of_uv_is_installed_as_it_says(uv_worker: Worker, tmp_path: Path) -> None:
    wheel(tmp_path / "index", word="the index's")
    project = "[project]\nname = 'study'\nversion = '1'\nrequires-python = '>=3.10'\n"
    mine = project_folder("mine", name="mine", word="mine")
    files = {
        "pyproject.toml": f"{project}dependencies = ['tinylib', 'mine']\n[tool.uv.sources]\nmine = {{path = 'mine'}}\n",
        **mine,
    }
    lock = locked_by_uv(tmp_path, files)
    python = await uv_worker.python("alice", {**HONEST, **files, "uv.lock": lock}, name="uv.lock")
    assert says(python, "import tinylib, mine, grpc; print(tinylib.WORD, mine.WORD)") == "the index's mine"
    again = await uv_worker.python("alice", {**HONEST, **files, "uv.lock": lock, "x": "y"}, name="uv.lock")
    assert again != python, "a folder of the study is a part of it"


async def test_a_lock_needs_uv(worker: Worker) -> None:
    with pytest.raises(UnpreparedError, match=r"uv.lock needs uv, which this worker lacks"):
        await worker.python("alice", {"uv.lock": "version = 1\n"}, name="uv.lock")


async def test_it_extends_the_python_that_the_study_names(worker: Worker) -> None:
    python = await worker.python("alice", {"requirements.txt": f"{WHEEL}\n", WHEEL: GOOD})
    assert says(python, "import tinylib, grpc; print(tinylib.WORD)") == "good", "and what the worker has"
    with pytest.raises(UnpreparedError, match="/no/such/python"):
        await worker.python("alice", {"requirements.txt": ""}, python="/no/such/python")


@pytest.mark.smoke
async def test_what_no_index_has_is_told_in_the_trials_log(worker: Worker) -> None:
    with pytest.raises(UnpreparedError) as refused:
        await worker.python("alice", {"requirements.txt": "no-such-package-of-ours==9.9\n"})
    said = "No matching distribution found for no-such-package-of-ours==9.9"
    assert said in str(refused.value)
    assert said in "".join(worker.printed)


async def test_an_empty_file_requires_nothing(worker: Worker) -> None:
    python = await worker.python("alice", {"requirements.txt": "# nothing\n"})
    assert says(python, "import grpc; print('runs')") == "runs"
