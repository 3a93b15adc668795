"""The Slurm engine against doubles of Slurm's commands: real processes that refuse, hang, or answer late."""

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from headrace.launch.engine import EngineError, Member, Stage
from headrace.launch.slurm import tokens as tokens_module
from headrace.launch.slurm.engine import SlurmEngine
from headrace.launch.slurm.tokens import TokenFolder

COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")
DOUBLE = """#!{python}
import json, os, sys, time
from pathlib import Path
folder = Path({folder!r})
name = Path(sys.argv[0]).name
stdin = sys.stdin.read() if name == "sbatch" else ""
listed = ("HEADRACE_", "SQUEUE_", "SCANCEL_", "SBATCH_", "SLURM_CLUSTERS")
ours = sorted(one for one in os.environ if one.startswith(listed))
with (folder / "calls.jsonl").open("a") as out:
    out.write(json.dumps([name, sys.argv[1:], stdin, ours]) + "\\n")
does = json.loads((folder / "does.json").read_text()).get(name, {{}})
time.sleep(does.get("hangs_s", 0))
sys.stdout.buffer.write(does.get("prints", "").encode("utf-8", "surrogateescape"))
sys.stdout.flush()
sys.stderr.write(does.get("complains", ""))
sys.exit(does.get("status", 0))
"""


class Slurm:
    """Commands on PATH that do what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.does: dict[str, dict[str, object]] = {}
        for name in COMMANDS:
            path = folder / name
            path.write_text(DOUBLE.format(python=sys.executable, folder=str(folder)))
            path.chmod(0o755)
        self.do()

    def do(self, **commands: dict[str, object]) -> None:
        self.does |= commands
        (self.folder / "does.json").write_text(json.dumps(self.does))

    @property
    def calls(self) -> list[tuple[str, list[str], str, list[str]]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return Slurm(tmp_path)


def engine(**changes: object) -> SlurmEngine:
    given: dict[str, object] = {"name": "workers", "script": "#!/bin/bash\nexec true\n", **changes}
    return SlurmEngine(**given)  # type: ignore[arg-type]


def pending(seat: int, job: int) -> Member:
    return Member(seat=seat, id=f"{job}_{seat}", stage=Stage.PENDING, worker=f"slurm-{job}-{seat}")


def test_each_seat_is_a_job_that_slurm_runs_once_and_the_admin_s_token_stays_here(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "hr_secret")
    engine(time_limit_min=240).submit([4, 1])
    (_, first, script, ours), (_, second, _, _) = slurm.calls
    assert first == [
        "--parsable",
        "--job-name=headrace-workers-1",
        "--array=1",
        "--dependency=singleton",
        "--signal=B:TERM@90",
        "--requeue",
        "--open-mode=append",
        "--time=240",
    ]
    assert "--array=4" in second
    assert (script, ours) == ("#!/bin/bash\nexec true\n", [])


def test_no_variable_of_the_user_hides_jobs_or_chooses_a_cluster(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_STATES", "SQUEUE_PARTITION", "SCANCEL_STATE", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("SBATCH_ACCOUNT", "team")
    engine().members()
    engine().submit([0])
    (_, listed, _, seen), (_, _, _, submitting) = slurm.calls
    assert {"--all", "--states=all"} <= set(listed)
    assert seen == submitting == ["SBATCH_ACCOUNT"]


def test_a_refusal_shows_slurm_s_message_and_ends_the_submission(slurm: Slurm) -> None:
    slurm.do(sbatch={"status": 1, "complains": "sbatch: error: Invalid account\n specified\n"})
    with pytest.raises(EngineError, match="sbatch refused: sbatch: error: Invalid account specified"):
        engine().submit([0, 1])
    assert len(slurm.calls) == 1


def test_a_command_that_hangs_is_given_up(slurm: Slurm) -> None:
    slurm.do(squeue={"hangs_s": 600})
    with pytest.raises(EngineError, match=r"squeue did not answer within 2 s\. The next turn shows"):
        engine(timeout_s=2).members()


def test_a_machine_without_slurm_says_where_to_run_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"squeue cannot be run: .* Run this where Slurm's commands work"):
        engine().members()


FIRST = "11|0|PD|Priority|headrace-workers-0\n"


def acts(slurm: Slurm) -> list[list[str]]:
    return [[name, *args] for name, args, _, _ in slurm.calls if name != "squeue"]


def test_a_double_is_held_before_it_is_cancelled_and_one_that_has_started_is_left_alone(slurm: Slurm) -> None:
    slurm.do(squeue={"prints": FIRST + "12|0|PD|JobHeldUser|headrace-workers-0\n"})
    engine().withdraw(pending(0, 12))
    assert acts(slurm) == [["scontrol", "uhold", "12_0"], ["scancel", "12_0"]]
    slurm.do(squeue={"prints": FIRST + "13|0|R|None|headrace-workers-0\n"})
    engine().withdraw(pending(0, 13))
    assert acts(slurm)[2:] == [["scontrol", "uhold", "13_0"], ["scontrol", "release", "13_0"]]
    slurm.do(squeue={"prints": ""})
    engine().withdraw(pending(0, 14))
    assert acts(slurm)[4:] == [["scontrol", "uhold", "14_0"]]


def test_a_job_that_a_killed_loop_left_held_is_released_if_it_is_alone_on_its_seat(slurm: Slurm) -> None:
    held = "12|0|PD|JobHeldUser|headrace-workers-0\n"
    slurm.do(squeue={"prints": held})
    (member,) = engine().members()
    assert member.held
    engine().withdraw(member)
    assert acts(slurm) == [["scontrol", "release", "12_0"]]
    slurm.do(squeue={"prints": FIRST + held})
    engine().withdraw(member)
    assert acts(slurm)[1:] == [["scancel", "12_0"]]
    slurm.do(squeue={"prints": held.replace("User", "Admin")})
    assert not engine().members()[0].held, "it is not ours to release"


def test_a_double_that_another_loop_withdrew_first_is_no_failure(slurm: Slurm) -> None:
    slurm.do(scontrol={"status": 1, "complains": "Invalid job id specified\n"}, squeue={"prints": FIRST})
    engine().withdraw(pending(0, 12))
    slurm.do(squeue={"prints": FIRST + "12|0|PD|Dependency|headrace-workers-0\n"})
    with pytest.raises(EngineError, match="Invalid job id"):
        engine().withdraw(pending(0, 12))


def test_the_dry_run_shows_commands_and_script_and_runs_none(slurm: Slurm) -> None:
    shown = engine().shown([0, 2])
    assert shown.count("sbatch --parsable") == 2
    assert shown.endswith("#!/bin/bash\nexec true\n")
    assert slurm.calls == []


def test_a_running_job_that_asks_gets_one_token_that_only_the_user_can_read(
    slurm: Slurm, tmp_path: Path
) -> None:
    folder = TokenFolder(tmp_path / "tokens")
    folder.prepare()
    assert stat.S_IMODE(folder.folder.stat().st_mode) == 0o700
    one = engine(tokens=folder)
    slurm.do(squeue={"prints": "12|0|R|None|headrace-workers-0\n13|1|PD|Priority|headrace-workers-1\n"})
    assert [member.awaits_token for member in one.members()] == [False, False]
    for worker in ("slurm-12-0", "slurm-13-1"):
        (folder.folder / f"{worker}.ask").touch()
    first, second = one.members()
    assert (first.awaits_token, second.awaits_token) == (True, False), (
        "the second was requeued and is pending"
    )
    assert one.deliver(first, "hr_1_secret")
    assert not one.deliver(first, "hr_2_secret"), "another loop was faster"
    path = folder.folder / "slurm-12-0.token"
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("hr_1_secret\n", 0o600)
    assert not one.members()[0].awaits_token


def asked(folder: Path, worker: str = "slurm-1-0") -> TokenFolder:
    (folder / f"{worker}.ask").touch()
    return TokenFolder(folder)


def test_of_two_loops_that_read_the_same_request_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = asked(tmp_path), TokenFolder(tmp_path)
    (tmp_path / "slurm-1-0.0123abcd.new").touch()  # of a loop that was killed
    read = first.awaiting()
    monkeypatch.setattr(TokenFolder, "awaiting", lambda _: read)
    assert first.deliver("slurm-1-0", "hr_1_secret")
    assert not second.deliver("slurm-1-0", "hr_2_secret")
    assert (tmp_path / "slurm-1-0.token").read_text() == "hr_1_secret\n"


def test_only_old_files_of_tokens_are_deleted_and_only_by_a_turn_that_acts(
    slurm: Slurm, tmp_path: Path
) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir(mode=0o700)
    old = time.time() - tokens_module.LEFTOVER_S - 1
    others = {"github.token", "draft.new", "notes.txt", "ca.pem", "slurm-7-0.token.bak"}
    gone = {"slurm-1-0.ask", "slurm-1-0.token", "slurm-2-0.89abcdef.new"}
    for name in others | gone:
        (folder / name).touch()
        os.utime(folder / name, (old, old))
    (folder / "slurm-9-0.token").mkdir()
    os.utime(folder / "slurm-9-0.token", (old, old))
    one = engine(tokens=asked(folder, "slurm-12-0"))
    slurm.do(squeue={"prints": "12|0|R|None|headrace-workers-0\n"})
    (member,) = one.members()
    assert gone < {file.name for file in folder.iterdir()}, "a dry run deletes nothing"
    assert one.deliver(member, "hr_1_secret")
    assert {file.name for file in folder.iterdir()} == others | {
        "slurm-9-0.token",
        "slurm-12-0.ask",
        "slurm-12-0.token",
    }


def test_a_folder_of_tokens_that_others_may_use_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o770)
    with pytest.raises(EngineError, match="is not yours alone"):
        TokenFolder(theirs).prepare()
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o770
    TokenFolder(theirs / "own").prepare()
    TokenFolder(theirs / "own").prepare()
    assert stat.S_IMODE((theirs / "own").stat().st_mode) == 0o700
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o770


def test_names_of_other_jobs_may_hold_anything(slurm: Slurm) -> None:
    slurm.do(
        squeue={
            "prints": "11|N/A|R|None|caf\udce9\n12|N/A|R|None|two\nlines\n13|0|PD|None|headrace-workers-0\n"
        }
    )
    assert [member.id for member in engine().members()] == ["13_0"]


def test_a_user_without_a_name_is_a_number(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    engine().members()
    assert "--user=123456" in slurm.calls[0][1]
