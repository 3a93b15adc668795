"""What a worker knows of the code that it runs, beside what the programs report."""

import os
import sys
from pathlib import Path

import pytest
from bundle_site import TRAIN, started
from other_user_site import USER, as_root
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace import not_known, sources
from headrace.sources import SourceFile
from headrace.v1 import event_pb2, spec_pb2
from headrace_worker.run_as import other_user
from headrace_worker.running_code import RunningCode, ToldCode, named_files


def template(folder: Path, *args: str, requirements: str = "") -> spec_pb2.TrialTemplate:
    return spec_pb2.TrialTemplate(
        command=spec_pb2.CommandLine(args=args), working_dir=str(folder), requirements=requirements
    )


def edit(program: Path, without: str = "") -> None:
    program.write_text(program.read_text().replace(without, "") + "# edited\n")


def paths(code: event_pb2.AttemptCode) -> list[str]:
    return sorted(file.path for file in code.files)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("python3", "train.py", "--out", "result.txt"), ["train.py"]),
        (("torchrun", "--nproc_per_node", "2", "train.py"), ["train.py"]),
        (("python3", "-m", "pkg.main"), ["pkg/main.py"]),
        (("./run", "result.txt"), ["run"]),
        (("{folder}/train.py",), ["train.py"]),
        (("/bin/sh", "-c", "exit 0"), []),
        (("program\0", "x" * 5000, "../elsewhere.py", "result.txt"), []),
        (("loop.py", "train.py"), ["train.py"]),
    ],
)
def test_the_program_of_a_command_is_the_file_that_it_names(
    tmp_path: Path, args: tuple[str, ...], named: list[str]
) -> None:
    folder = tmp_path / "project"
    for name in ("train.py", "pkg/main.py", "run", "result.txt", "../elsewhere.py"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (folder / "run").chmod(0o755)
    (folder / "loop.py").symlink_to("loop.py")
    filled = [arg.replace("{folder}", str(folder)) for arg in args]
    assert [file.path for file in named_files(template(folder, *filled), filled)] == named


def test_the_requirements_are_code_too(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==1\n")
    one = named_files(template(tmp_path, "prog", requirements="requirements.txt"), ["prog"])
    (tmp_path / "requirements.txt").write_text("numpy==2\n")
    two = named_files(template(tmp_path, "prog", requirements="requirements.txt"), ["prog"])
    assert ([file.path for file in one], one == two) == (["requirements.txt"], False)


def test_what_a_study_names_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for named in ("pipe", "loop", "absent", "."):
        assert named_files(template(tmp_path, "prog", requirements=named), ["prog"]) == []


@as_root
def test_a_worker_that_is_root_says_nothing_of_files_that_the_trials_user_may_not_read(
    open_folder: Path,
) -> None:
    """A study may name any folder of the machine, and links may lead anywhere."""
    project, closed = open_folder / "project", open_folder / "closed"
    project.mkdir()
    closed.mkdir(mode=0o700)
    for folder in (project, closed):
        (folder / "train.py").write_text("secret")
        (folder / "train.py").chmod(0o644)
    (project / "mine.py").write_text("secret")
    (project / "mine.py").chmod(0o600)
    (project / "link.py").symlink_to(closed / "train.py")
    user = other_user(USER)

    def found(folder: Path, name: str) -> list[str]:
        told = named_files(template(folder, name, requirements=name), [name], user.may_read)
        return [file.path for file in told]

    assert found(project, "train.py") == ["train.py"] * 2
    assert found(closed, "train.py") == []
    assert found(project, "mine.py") == []
    assert found(project, "link.py") == []
    os.chown(project / "mine.py", user.uid, user.gid)
    assert found(project, "mine.py") == ["mine.py"] * 2


def test_each_file_is_reported_once_and_the_digest_is_of_all() -> None:
    code = RunningCode()
    assert code.since(None) is None
    one, two = SourceFile("a.py", "1"), SourceFile("b.py", "2")
    assert code.add([one])
    assert not code.add([one])
    first = code.since(None)
    assert first is not None
    assert code.since(1) is None
    assert code.add([one, two])
    second = code.since(1)
    assert second is not None
    assert [file.path for file in second.files] == ["b.py"]
    assert second.digest == sources.digest_of([two, one]) != first.digest


def test_shipped_code_is_its_archive() -> None:
    code = RunningCode("abc")
    assert not code.add([SourceFile("a.py", "1")])
    said = code.since(None)
    assert said is not None
    assert (said.digest, list(said.files), code.since(0)) == ("abc", [], None)


def test_an_edit_is_seen_where_the_file_was_seen_before() -> None:
    told = ToldCode()
    assert not told.record("s", [SourceFile("a.py", "1")])
    assert not told.record("s", [SourceFile("a.py", "1"), SourceFile("late.py", "1")])
    assert not told.record("another", [SourceFile("a.py", "2")])
    assert told.record("s", [SourceFile("a.py", "2")])
    assert not told.record("s", [SourceFile("a.py", "2")])
    unknown = SourceFile("first.py", not_known.new_digest())
    assert told.record("s", [unknown])
    assert not told.record("s", [unknown])
    assert told.record("s", [SourceFile("first.py", not_known.new_digest())])


@pytest.mark.full
async def test_a_program_without_the_sdk_is_reported_with_the_first_report_and_an_edit_at_once(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    command = site.program("for step in (1, 2):\n    leave_if_told(report(step))\n")
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(command, milestone=3))
    await until(lambda: stream.all("exited"), "the first trial ends")
    first, second = stream.all("report")
    assert [file.path for file in first.code.files] == [Path(command[1]).name]
    assert not second.HasField("code")
    assert not stream.all("restored")
    edit(Path(command[1]))
    stream.send(assign=site.assign(command, milestone=3, number=1))
    (early,) = await until(lambda: stream.all("restored"), "the edit is told")
    assert early.lease.trial.endswith("/1")
    assert early.code.digest != first.code.digest
    await until(lambda: len(stream.all("exited")) == 2, "the second trial ends")
    assert stream.all("report")[2].code == early.code
    assert early.sequence < stream.all("report")[2].sequence


@pytest.mark.parametrize("guards", [False, True])
async def test_an_edit_is_reported_before_the_checkpoint_is_loaded(
    site: Site, scheduler: ScriptedScheduler, guards: bool
) -> None:
    command = site.program(
        "report(1, save=True)\n"
        "request = runtime_pb2.RestoredRequest(lease_id=lease)\n"
        "request.read_time.FromSeconds(1)\n"
        "stub.Restored(request, timeout=60)\n"
    )
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(command, milestone=9))
    report = await stream.get("report")
    await until(lambda: stream.all("exited"), "the first attempt ends")
    known = len(stream.all("restored"))
    edit(Path(command[1]), without="report(1, save=True)")
    again = site.assign(command, attempt=2, checkpoint=report.checkpoint, resume_step=1, guards_code=guards)
    stream.send(assign=again)
    await until(lambda: len(stream.all("exited")) == 2, "the second attempt ends")
    of_code = [one.HasField("code") for one in stream.all("restored")[known:]]
    assert of_code == [True, False]


@pytest.mark.full
@pytest.mark.parametrize("guards", [False, True])
async def test_a_callable_says_what_it_imported_before_it_trains_and_later(
    site: Site, scheduler: ScriptedScheduler, guards: bool
) -> None:
    (site.root / "running_train.py").write_text(
        "import running_model\n"
        "def train(t):\n"
        "    for step in t.steps():\n"
        "        if step == 2:\n"
        "            import running_late\n"
        "        t.report(loss=1.0)\n"
    )
    (site.root / "running_model.py").write_text("")
    (site.root / "running_late.py").write_text("")
    assign = site.assign([sys.executable], milestone=4, guards_code=guards)
    assign.template.ClearField("command")
    assign.template.callable = "running_train:train"
    assign.max_steps = 3
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=assign)
    await until(lambda: stream.all("exited"), "the trial ends")
    whole = ["running_model.py", "running_train.py"]
    assert [paths(one.code) for one in stream.all("report")] == [whole, ["running_late.py"], []]
    early = [paths(one.code) for one in stream.all("restored")]
    assert early == ([whole, ["running_late.py", *whole]] if guards else [])


@pytest.mark.full
@pytest.mark.parametrize("guards", [False, True])
async def test_all_members_of_a_bundle_run_what_their_process_imported(
    site: Site, scheduler: ScriptedScheduler, guards: bool
) -> None:
    loads = """
request = runtime_pb2.LoadedRequest(grant_id=grant)
request.files.add(path="fused.py", digest="1")
stub.Loaded(request, timeout=60)
"""
    bundle = await started(site, scheduler, loads + TRAIN)
    ran = ["fused.py", Path(bundle.command[1]).name]
    one = bundle.start(1, milestone=40, guards_code=guards)
    first = await bundle.report(one, 1)
    late = bundle.start(2, milestone=40, guards_code=guards)
    assert paths(first.code) == paths((await bundle.report(late, 1)).code) == ran
    assert not (await bundle.report(late, 2)).HasField("code")
    early = [(one.lease, paths(one.code)) for one in bundle.stream.all("restored")]
    told = [(one.lease, ran[1:]), (one.lease, ran), (late.lease, ran)]
    assert early == (told if guards else [])
