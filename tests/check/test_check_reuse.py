"""`headrace check --reuse`: may a process run several trials?"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import headrace_command
from forked import launch_segment

from headrace.check import CheckError, ReuseReport, ReuseVerdict, render_reuse, reuse_runner, run_reuse_check
from headrace.check.main_call import main_call
from headrace.check.report import Limit
from headrace.check.reuse_record import Changed
from headrace.spec import load_study_file
from headrace.spec.configuration import other_configuration_of

SOUND = """
import random, numpy, torch
from headrace import trial

RATES = {"slow": 0.1, "quick": 0.2}

def train(t):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
    opt = torch.optim.AdamW(model.parameters(), lr=t.params["lr"] * RATES["quick"])
    t.track(model=model, optimizer=opt)
    for _ in t.steps():
        opt.zero_grad()
        loss = model(torch.randn(5, 3)).square().mean()
        loss.backward()
        opt.step()
        t.report(loss=loss, luck=random.random() + numpy.random.rand())

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.05}, steps=3)
"""
READS = """
import ctypes, os, socket, sys
from pathlib import Path
from headrace import trial
sys.path.append(str(Path(__file__).with_name("site-packages")))
import vendor
def train(t):
    seen = float(READ)
    for _ in t.steps():
        t.report(loss=seen + t.params.get("lr", 1.0))
    LEAVE
if __name__ == "__main__":
    trial.main(train, steps=3)
"""
VENDOR = """
from functools import lru_cache
CALLS = []
class Model:
    pass
@lru_cache
def options():
    return {}
def scale(x):
    return x
"""
FUSED = """
from headrace import trial

class Group:
    def __init__(self): self.rows = {}
    @property
    def ids(self): return list(self.rows)
    def add(self, members, states=None):
        ids = [len(self.rows) + place for place in range(len(members))]
        for place, one in zip(ids, members):
            self.rows[place] = float(one["lr"])
        return ids
    def drop(self, members):
        for one in members:
            del self.rows[one]
    def member_state(self, member): return {"model": {"w": self.rows[member]}, "optimizer": {}}
    def step(self):
        self.rows = {one: value * 0.9 + LEAK for one, value in self.rows.items()}
        return list(self.rows.values())

def train(bundle: trial.Bundle):
    group = Group()
    bundle.track(group=group, member=lambda one: {"lr": one.params["lr"], "seed": one.seed})
    for _ in bundle.steps():
        bundle.report(loss=group.step())
    import json
    json.JSONDecoder.decode.uses = 1
"""
STUDY = """
name: reused
objective: {metric: loss, goal: minimize}
trial: {TRIAL}
space: {lr: {type: float, low: 0.01, high: 0.1}}
policy: {kind: asha, eta: 2, rungs: [2, 4]}
trials: 3
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ReuseReport]:
    """Checks a script, beside a library. Of the many that the processes of tests have imported, few are searched."""
    monkeypatch.setattr(reuse_runner, "READS", 50_000)

    def run(source: str, **options: object) -> ReuseReport:
        folder = tmp_path / "project"
        (folder / "site-packages").mkdir(parents=True)
        (folder / "site-packages" / "vendor.py").write_text(VENDOR)
        (folder / "script.py").write_text(source)
        options = {"folder": folder, "limit_s": 6000.0, **options}
        return run_reuse_check(folder / "script.py", launch=launch_segment, **options)  # type: ignore[arg-type]

    return run


def reading(read: str, leave: str = "pass") -> str:
    """A script whose trial computes with what it reads, and changes that at its end."""
    return READS.replace("READ", read).replace("LEAVE", leave)


def test_a_sound_script_passes(check: Callable[..., ReuseReport]) -> None:
    report = check(SOUND)
    assert report.verdict is ReuseVerdict.PASSED, render_reuse(report)
    assert (report.steps, report.params, report.metrics) == (3, {"lr": 0.05}, ("loss", "luck"))
    assert report.import_s > 0
    assert report.first_steps == 3
    assert "NOT COVERED" not in render_reuse(report)
    assert "`trial: {reuse: true}` is safe, as far as these runs show" in render_reuse(report)
    assert "s of processor time per attempt after a process's first" in render_reuse(report)


def test_a_setting_that_is_restored_changes_nothing(check: Callable[..., ReuseReport]) -> None:
    leave = "os.environ['MORE'] = '1'; import torch; torch.set_default_dtype(torch.float64)"
    report = check(reading("bool(os.environ.get('MORE'))", leave))
    assert report.verdict is ReuseVerdict.PASSED, render_reuse(report)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("read", "leave", "named"),
    [
        ("len(vendor.CALLS)", "vendor.CALLS.append(1)", "vendor.CALLS grew from 0 to 1 entry"),
        (
            "hasattr(vendor.Model, ''.join(['us', 'es']))",
            "setattr(vendor.Model, ''.join(['us', 'es']), 1)",
            "vendor.Model.uses is new",
        ),
        ("len(vendor.options())", "vendor.options()['a'] = 1", "vendor.options"),
        (
            "vars(vendor)[''.join(['sca', 'le'])](3)",
            "setattr(vendor, ''.join(['sca', 'le']), lambda x: 2 * x)",
            "vendor.scale was replaced by another function",
        ),
        (
            "float('1e16') + 1 - float('1e16')",
            "ctypes.CDLL('libm.so.6').fesetround(0x800)",
            "the rounding mode of the processor",
        ),
    ],
    ids=["list", "class attribute", "lru_cache", "function replaced", "C"],
)
def test_what_a_trial_leaves_in_a_library_is_named(
    check: Callable[..., ReuseReport], read: str, leave: str, named: str
) -> None:
    report = check(reading(read, leave))
    assert report.verdict is ReuseVerdict.FAILED, render_reuse(report)
    assert report.difference is not None
    assert report.difference.what == "loss"
    assert any(named in one.finding for one in report.changed), report.changed
    assert f"state that trial A left, and trial B may have read: {report.changed[0].finding}" in render_reuse(
        report
    )


@pytest.mark.full
def test_what_cannot_be_seen_fails_without_a_name(check: Callable[..., ReuseReport]) -> None:
    """C's own environment, which Python copies when it starts."""
    report = check(
        reading("ctypes.CDLL(None).getenv(b'SEEN') != 0", "ctypes.CDLL(None).setenv(b'SEEN', b'1', 1)")
    )
    assert report.verdict is ReuseVerdict.FAILED
    assert "FAILED  script.py: after another trial in its process" in render_reuse(report)


@pytest.mark.parametrize("ships", [False, True])
def test_a_file_of_an_earlier_trial_is_named(
    check: Callable[..., ReuseReport], tmp_path: Path, ships: bool
) -> None:
    read = "len(Path('best.txt').read_text()) if Path('best.txt').exists() else 0"
    report = check(reading(read, "Path('best.txt').open('a').write('1')"), ships=ships)
    assert report.verdict is ReuseVerdict.FAILED, render_reuse(report)
    assert report.files == ("best.txt",)
    assert "1. file: the trial reads best.txt as an earlier trial left it" in render_reuse(report)
    assert report.left_files == (() if ships else ("best.txt",))


@pytest.mark.full
def test_what_a_trial_leaves_in_a_library_that_it_imports_is_named(check: Callable[..., ReuseReport]) -> None:
    source = reading("len(vendor.CALLS)", "vendor.CALLS.append(1)").replace("import vendor\n", "")
    report = check(source.replace("def train(t):", "def train(t):\n    import vendor"))
    assert report.verdict is ReuseVerdict.FAILED, render_reuse(report)
    assert "vendor.CALLS grew from 0 to 1 entry" in [one.finding for one in report.changed]


@pytest.mark.full
def test_a_file_that_is_only_looked_for_in_a_copy_is_suspected(check: Callable[..., ReuseReport]) -> None:
    report = check(reading("Path('best.txt').exists()", "Path('best.txt').touch()"), ships=True)
    assert report.verdict is ReuseVerdict.FAILED
    assert "trial A left best.txt in the copy of the shipped code" in render_reuse(report)


@pytest.mark.full
def test_a_file_that_is_only_looked_for_is_suspected(check: Callable[..., ReuseReport]) -> None:
    report = check(reading("Path('best.txt').exists()", "Path('best.txt').touch()"))
    assert report.verdict is ReuseVerdict.UNDECIDED
    assert "the runs left best.txt in their folder" in render_reuse(report)


@pytest.mark.full
def test_a_file_named_by_the_trials_id_is_its_own(check: Callable[..., ReuseReport], tmp_path: Path) -> None:
    read = "Path(f'{t.id}.txt').exists()"
    report = check(reading(read, "Path(f'{t.id}.txt').write_text('1')"))
    assert report.verdict is ReuseVerdict.PASSED, render_reuse(report)
    assert not list((tmp_path / "project").glob("*.txt"))


@pytest.mark.full
def test_a_trial_that_fails_after_another_is_told(check: Callable[..., ReuseReport]) -> None:
    report = check(reading("1 / (1 - len(vendor.CALLS))", "vendor.CALLS.append(1)"))
    assert report.verdict is ReuseVerdict.FAILED
    assert (
        "the end at step 0 is without an error, after step 3 alone, an error: ZeroDivisionError"
        in render_reuse(report)
    )
    assert any(one.finding.startswith("vendor.CALLS") for one in report.changed)


@pytest.mark.parametrize(
    ("source", "finding", "remedy"),
    [
        (
            "COUNT = 0\n" + reading("0", "global COUNT; COUNT += 1"),
            "script.COUNT was 0 and is now 1",
            "set it when the module is imported, or keep it local to the function",
        ),
        (
            reading("0", "vendor.scale = lambda x: 2 * x"),
            "it replaced vendor.scale",
            "do so when the module is imported, or restore it before the function returns",
        ),
        (reading("0", "socket.socket().detach()"), "it left a socket open", ""),
    ],
    ids=["variable", "patch", "leftover"],
)
def test_what_ends_the_process_is_no_gain(
    check: Callable[..., ReuseReport], source: str, finding: str, remedy: str
) -> None:
    report = check(source)
    assert report.verdict is ReuseVerdict.NO_GAIN, render_reuse(report)
    assert not report.passed
    assert f"the trial would be the last of its process: {finding}" in render_reuse(report)
    assert f"remedy: {remedy}" in render_reuse(report)
    assert "Nothing is computed wrongly" in render_reuse(report)


def test_a_difference_counts_for_more_than_what_ends_the_process_later(
    check: Callable[..., ReuseReport],
) -> None:
    leave = "vendor.CALLS.append(1); len(vendor.CALLS) > 1 and socket.socket().detach()"
    report = check(reading("len(vendor.CALLS)", leave))
    assert "a socket open" in report.left_behind
    assert report.verdict is ReuseVerdict.FAILED


def test_what_only_the_second_trial_leaves_ends_the_process(check: Callable[..., ReuseReport]) -> None:
    leave = "vendor.CALLS.append(1); len(vendor.CALLS) > 1 and socket.socket().detach()"
    report = check(reading("0", leave))
    assert "a socket open" in report.left_behind
    assert report.verdict is ReuseVerdict.NO_GAIN


@pytest.mark.cases(1)
@pytest.mark.parametrize("where", ["os.urandom(1)[0]", "id(t) + os.getpid()"])
def test_a_script_that_is_not_deterministic_is_undecided(
    check: Callable[..., ReuseReport], where: str
) -> None:
    report = check(reading(f"{where} + os.urandom(4)[0] / 7 + os.getpid()"))
    assert report.verdict is ReuseVerdict.UNDECIDED, render_reuse(report)
    assert "this script is not deterministic by itself" in render_reuse(report)


@pytest.mark.full
def test_a_script_that_differs_once_is_not_blamed_on_reuse(check: Callable[..., ReuseReport]) -> None:
    """Of its six trials, only the third computes something else: the first that runs after another."""
    report = check(reading("print(1, file=open('../runs', 'a')) or os.stat('../runs').st_size == 6"))
    assert report.verdict is ReuseVerdict.UNDECIDED, render_reuse(report)
    assert "two runs that should be equal: loss at step 1 is 2.0 in one, 1.0 in the other" in render_reuse(
        report
    )


def test_a_time_is_left_out(check: Callable[..., ReuseReport]) -> None:
    source = reading("0").replace("t.report(", "import time; t.report(seconds=time.perf_counter(), ")
    report = check(source)
    assert report.verdict is ReuseVerdict.PASSED, render_reuse(report)
    assert [one.what for one in report.noise] == ["seconds"]
    assert report.metrics == ("loss",)


def test_the_steps_that_were_not_run_are_told(check: Callable[..., ReuseReport]) -> None:
    report = check(SOUND.replace("steps=3", "steps=40"), steps=4)
    assert (report.limit, report.last_step, report.verdict) == (Limit.STEPS, 4, ReuseVerdict.PASSED)
    assert "NOT COVERED: the steps after step 4 of 40, as --steps says" in render_reuse(report)


def test_no_time_for_the_end_is_passed_in_part(check: Callable[..., ReuseReport]) -> None:
    report = check(SOUND.replace("steps=3", "steps=4000"), limit_s=0.0)
    assert (report.limit, report.last_step, report.verdict) == (Limit.TIME, 3, ReuseVerdict.PASSED_IN_PART)
    assert report.passed
    assert f"for lack of time: --time-limit {report.enough_s} covers all" in render_reuse(report)
    assert report.enough_s >= 60


@pytest.mark.parametrize(
    ("source", "message", "remedy"),
    [
        ("1 / 0\n" + SOUND, "script.py fails by itself", "Fix it"),
        ("print('no function')", "names no function that trains", "--callable"),
        (
            reading("1 / (1 if t.seed == 0 else 0)"),
            "script.py fails as trial A, with no parameters and seed 1: ZeroDivisionError",
            "Fix it",
        ),
    ],
    ids=["fails", "no function", "fails with another seed"],
)
def test_a_script_that_cannot_be_checked_is_refused(
    check: Callable[..., ReuseReport], source: str, message: str, remedy: str
) -> None:
    with pytest.raises(CheckError) as raised:
        check(source)
    assert message in str(raised.value)
    assert remedy in raised.value.remedy


@pytest.mark.full
def test_a_configuration_that_is_infeasible_keeps_the_process(check: Callable[..., ReuseReport]) -> None:
    source = reading("0").replace(
        "def train(t):",
        "from headrace import trial\ndef train(t):\n    if t.seed: raise trial.Infeasible('no')",
    )
    report = check(source)
    assert report.verdict is ReuseVerdict.PASSED
    assert "NOT COVERED: a trial A that trains as long: it ended after 0 steps" in render_reuse(report)


@pytest.mark.parametrize(
    ("leak", "verdict"),
    [
        ("0", ReuseVerdict.PASSED),
        ("hasattr(__import__('json').JSONDecoder.decode, 'uses')", ReuseVerdict.FAILED),
    ],
)
@pytest.mark.cases(1)
def test_a_function_that_fuses_is_checked_with_one_member(
    check: Callable[..., ReuseReport], leak: str, verdict: ReuseVerdict
) -> None:
    report = check(FUSED.replace("LEAK", leak), callable="train", params={"lr": 0.5}, max_steps=3)
    assert report.verdict is verdict, render_reuse(report)
    assert report.steps == 3


def project(folder: Path, trial: str, source: str = SOUND) -> Path:
    (folder / "train.py").write_text(source)
    (folder / "study.yaml").write_text(STUDY.replace("TRIAL", trial))
    return folder


@pytest.mark.cases(1)
@pytest.mark.parametrize("code", ["", ", code: ship"])
def test_a_study_is_checked_with_two_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(reuse_runner, "_launch", launch_segment)
    folder = project(tmp_path, f"callable: train:train{code}")
    done = headrace_command("check", "study.yaml", "--reuse", "--json", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["passed"], told["verdict"], told["last_step"]) == (True, "passed", 4)
    assert told["params"]["lr"] != told["first_params"]["lr"]


def test_a_leak_is_an_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse_runner, "_launch", launch_segment)
    leaks = SOUND.replace("RATES =", "COUNTS = []\nRATES =").replace(
        "def train(t):", "def train(t):\n    COUNTS.append(1)"
    )
    folder = project(tmp_path, "callable: train:train", leaks)
    done = headrace_command("check", "study.yaml", "--reuse", folder=folder)
    assert done.returncode == 1
    assert done.stdout.startswith("NO GAIN  train.py: "), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("trial", "options", "message"),
    [
        ("command: [python, train.py]", (), "only a callable's process can run several"),
        ("callable: train:train", ("--ranks", "2"), "--reuse cannot check a gang of ranks yet"),
        (
            "callable: train:train}\nresources: {gpus: 2, processes: per_slot",
            (),
            "--reuse cannot check a gang of ranks yet",
        ),
    ],
    ids=["command", "ranks", "gang"],
)
def test_what_cannot_be_checked_for_reuse_is_refused(
    tmp_path: Path, trial: str, options: tuple[str, ...], message: str
) -> None:
    done = headrace_command("check", "study.yaml", "--reuse", *options, folder=project(tmp_path, trial))
    assert done.returncode == 2
    assert message in done.stderr


def test_suspects_are_those_that_the_code_mentions() -> None:
    def changed(name: str, *, users: bool = False) -> Changed:
        return Changed(name=name, finding=name, remedy="", users=users)

    cache, count, own = changed("re.cache"), changed("torch.count"), changed("json.mine", users=True)
    assert reuse_runner.suspects([[cache, count], [count]], [[cache, count]]) == ((count,), (cache,))
    assert reuse_runner.suspects([[cache, own], []], [[cache, own]]) == ((own,), (cache,))
    assert reuse_runner.suspects([[cache], []], [[cache]]) == ((cache,), ())
    assert reuse_runner.suspects([], []) == ((), ())


@pytest.mark.parametrize(
    ("call", "params", "steps"),
    [
        ("trial.main(train, defaults={'lr': 0.1}, steps=7)", {"lr": 0.1}, 7),
        ("trial.main(train, defaults=BEST | {'lr': 0.2}, steps=len(BEST))", {"lr": 0.2, "width": 8}, 1),
        ("trial.main(train, defaults=of_this_block)", {}, 1),
        ("trial.main(train)", {}, 1),
    ],
)
def test_the_defaults_of_a_script_are_those_of_its_call(
    tmp_path: Path, call: str, params: dict[str, float], steps: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"from headrace import trial\nif __name__ == '__main__':\n    {call}\n")
    found = main_call(script)
    assert found is not None
    assert found.function == "train"
    defaults = found.defaults({"BEST": {"width": 8}})
    assert (defaults.params, defaults.steps) == (params, steps)


def test_a_script_that_passes_no_function_of_its_own_has_no_such_call(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from headrace import trial\nt = trial.current(defaults={'lr': 1})\nprint(t)\n")
    assert main_call(script) is None


@pytest.mark.parametrize(("domain", "differs"), [("low: 1, high: 9", True), ("low: 4, high: 4", False)])
def test_the_trial_before_has_another_configuration_if_there_is_one(
    tmp_path: Path, domain: str, differs: bool
) -> None:
    (tmp_path / "train.py").write_text(SOUND)
    study = STUDY.replace("TRIAL", "callable: train:train").replace(
        "{type: float, low: 0.01, high: 0.1}", f"{{type: int, {domain}}}"
    )
    (tmp_path / "study.yaml").write_text(study)
    spec = load_study_file(tmp_path / "study.yaml").spec
    values = {"lr": 4}
    assert (other_configuration_of(spec, values) != values) is differs
