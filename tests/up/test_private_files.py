"""`headrace up` keeps its files private to its user, and changes no mode of existing files."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from test_up_end_to_end import up

from headrace import Client
from headrace.errors import HeadraceError
from headrace.home import address_in
from headrace_services.up import pgwheel
from headrace_services.up.postgres import EmbeddedPostgres

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's server is another user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def embedded(home: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(data_dir=home / "postgres", log_path=home / "logs" / "postgres.log")


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder, closed like root's own, that nobody else can enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_all_that_up_makes_is_its_users_alone(closed: Path, usual_umask) -> None:
    before = {folder: mode(folder) for folder in closed.parents}
    home = closed / "new" / "home"
    (closed / "new.out").touch()
    home.parent.mkdir(mode=0o755)
    with up(home), Client(address_in(home)) as client:
        assert client.workers()
        open_to_others = {
            str(path.relative_to(home)): oct(mode(path))
            for path in (home, *home.rglob("*"))
            if not path.is_symlink() and not path.is_socket() and mode(path) & 0o077
        }
    assert open_to_others == {}
    assert {folder: mode(folder) for folder in closed.parents} == before
    assert (mode(closed), mode(home.parent), mode(home)) == (0o700, 0o755, 0o700)


@pytest.mark.full
def test_a_home_of_the_users_own_making_keeps_its_mode(closed: Path, usual_umask) -> None:
    home = closed / "mine"
    home.mkdir()
    with up(home):
        assert mode(home) == 0o755


@as_root
async def test_a_server_below_a_closed_folder_serves(closed: Path, running) -> None:
    postgres = embedded(closed / "home")
    async with running([postgres.child()]):
        connection = await psycopg.AsyncConnection.connect(
            host=str(postgres.socket_dir), dbname="postgres", user="postgres"
        )
        async with connection:
            answer = await connection.execute("SELECT current_setting('data_directory') <> ''")
            assert await answer.fetchone() == (True,)
    assert mode(closed) == 0o700


@pytest.mark.full
@as_root
async def test_programs_in_a_closed_folder_are_copied_and_keep_their_modes(
    closed: Path, running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example in a virtual environment below root's own folder."""
    site, package = pgwheel.PROGRAMS.parents[2], pgwheel.PROGRAMS.parents[1].name
    installed = closed / package / "pginstall"
    shutil.copytree(pgwheel.PROGRAMS.parent, installed, symlinks=True)
    shutil.copytree(site / f"{package}.libs", closed / f"{package}.libs", symlinks=True)
    (installed / "bin" / "postgres").chmod(0o700)
    monkeypatch.setattr(pgwheel, "PROGRAMS", installed / "bin")
    monkeypatch.setattr(pgwheel, "COPIES", copies := Path("/tmp") / f"hr-{os.getpid()}")
    before = os.umask(0o077)
    try:
        for _ in range(2):
            async with running([embedded(closed / "home").child()]):
                pass
        assert mode(installed / "bin" / "postgres") == 0o700
        assert len(list(copies.iterdir())) == 1
    finally:
        os.umask(before)
        shutil.rmtree(copies, ignore_errors=True)


@as_root
def test_copies_that_somebody_else_could_change_are_refused(
    closed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pgwheel, "PROGRAMS", closed / "bin")
    monkeypatch.setattr(pgwheel, "COPIES", tmp_path / "copies")
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies").chmod(0o777)
    with pytest.raises(HeadraceError, match="can be written by others"):
        pgwheel.provide()


@as_root
def test_a_data_folder_of_another_user_is_refused(closed: Path) -> None:
    data = closed / "home" / "postgres"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text(f"{pgwheel.VERSION}\n")
    with pytest.raises(HeadraceError, match="belongs to root") as caught:
        embedded(closed / "home").prepare()
    assert "chown -R pgserver" in caught.value.remedy


@pytest.mark.full
@pytest.mark.timeout(240)
def test_run_local_makes_a_private_home(tmp_path: Path, usual_umask) -> None:
    home = tmp_path / "hr"
    study = tmp_path / "study.yaml"
    (tmp_path / "train.py").write_text(
        "from pathlib import Path\ndef train(t):\n    for _ in t.steps():\n        t.report(loss=t.params['x'])\n"
        "    Path('mine.txt').write_text('x')\n"
    )
    study.write_text(
        "name: s\nobjective: {metric: loss, goal: minimize}\ntrial: {callable: train:train}\n"
        "space: {x: {type: float, low: 0, high: 1}}\npolicy: {kind: run_all}\ntrials: 1\nsteps: 1\n"
    )
    command = [sys.executable, "-m", "headrace.cli", "run", "--local", "--slots", "1", str(study)]
    done = subprocess.run(
        command, env={**os.environ, "HEADRACE_HOME": str(home)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (place,) = (home / "local").iterdir()
    private = [home, home / "local", place, place / "up.log", *(place / "workers").rglob("*")]
    assert {str(path): oct(mode(path)) for path in private if mode(path) & 0o077} == {}
    # The files of the user's own program have the user's own modes.
    assert mode(tmp_path / "mine.txt") == 0o644
