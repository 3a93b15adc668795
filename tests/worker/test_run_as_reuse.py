"""A reused process under `--run-as`: each of its trials runs as the other user, and its folders go with it."""

import pwd
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callable_trials import PROGRAM, Trials
from other_user_site import USER, as_root, daemon_of_root, interpreter
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import worker_pb2

SAYS_WHO = PROGRAM.replace(
    "    seen = {",
    """    import tempfile
    tempfile.TemporaryFile().close()
    seen = {
        "user": (os.getuid(), os.geteuid(), os.getgid(), sorted(os.getgroups())),
        "temporary": tempfile.gettempdir(),
        "umask": Path("/proc/self/status").read_text().partition("Umask:")[2].split()[0],""",
)


@pytest.fixture(scope="module", autouse=True)
def python() -> str:
    """Found before gRPC has threads in this process."""
    return interpreter()


@pytest.fixture
async def trials(open_folder: Path, scheduler: ScriptedScheduler) -> AsyncIterator[Trials]:
    site = Site(open_folder, scheduler)
    site.marks.chmod(0o777)
    scheduler.interval_s = 60.0
    async with daemon_of_root(site, 1):
        trials = Trials(site, await scheduler.stream())
        trials.write(SAYS_WHO)
        yield trials


@pytest.mark.full
@as_root
async def test_the_next_trial_of_the_process_is_the_other_user_s_too(trials: Trials) -> None:
    first = await trials.begin(reuse=True)
    ends = [await trials.end()]
    second = await trials.begin(reuse=True)
    ends.append(await trials.end())
    nobody = pwd.getpwnam(USER)
    assert [end.left_behind for end in ends] == ["", ""]
    assert second["pid"] == first["pid"]
    assert first["user"] == second["user"]
    assert first["user"][:2] == [nobody.pw_uid] * 2
    assert [end.outcome for end in ends] == [worker_pb2.EXIT_OUTCOME_RELEASED] * 2
    assert first["umask"] == second["umask"]


@pytest.mark.full
@as_root
async def test_a_file_in_its_temporary_folder_ends_the_process_and_goes_with_it(trials: Trials) -> None:
    trials.write(SAYS_WHO + "    os.close(tempfile.mkstemp()[0])\n")
    seen = await trials.begin(reuse=True)
    ended = await trials.end()
    folder = Path(seen["temporary"])
    assert folder.is_relative_to(trials.site.root)
    assert "into a folder of its process" in ended.left_behind
    await until(lambda: not folder.exists(), "its folder is deleted")
    again = await trials.begin(reuse=True)
    assert again["temporary"] != seen["temporary"]
    await trials.end()
