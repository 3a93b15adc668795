"""The first use of `headrace check`: a plain function, a study without a baseline, averages that nobody saves."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import launch_segment

from headrace.check import CheckError, CheckReport, Kind, render, run_check
from headrace.check.source import parameters_read, training_function

Check = Callable[..., CheckReport]

TRAIN = """
import collections
import torch
from headrace import trial

class Averages:
    def __init__(self, model):
        self.values = [weight.detach().clone() for weight in model.parameters()]
        self.seen = {"loss": 0.0}

def train(t):
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averages = Averages(model)
    BEFORE
    t.track(model, optimizer)
    for _ in t.steps():
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 2)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        AFTER
        t.report(value=VALUE)

if __name__ == "__main__":
    trial.main(train, steps=9)
"""
EMA = "{name: value.clone() for name, value in model.state_dict().items()}"
BLEND = "[ema[name].mul_(0.9).add_(value, alpha=0.1) for name, value in model.state_dict().items()]"
TOTAL = "sum(value.sum() for value in ema.values())"
PLAIN = """
def helper(count):
    return count

def train(t, verbose=False):
    t.state.setdefault("sum", 0.0)
    for step in t.steps():
        t.state["sum"] += t.params["rate"] / step + t.params.get("shift", 0.0)
        t.report(total=t.state["sum"])
"""
STUDY = """
name: plain
objective: {metric: total, goal: minimize}
trial: {callable: plain:train}
space:
  rate: {type: float, low: 1e-3, high: 1.0, log: true}
  width: {type: int, low: 8, high: 64, log: true}
  depth: {type: int, low: 1, high: 9, step: 2}
  kind: {type: categorical, values: [a, b]}
  slope: {type: float, low: 0.0, high: 1.0, when: {kind: [a]}}
  other: {type: float, low: 0.0, high: 1.0, step: 0.25, when: {kind: [b]}}
trials: 3
steps: 3
"""


def script_of(before: str, after: str, value: str) -> str:
    return TRAIN.replace("BEFORE", before).replace("AFTER", after).replace("VALUE", value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "value", "path"),
    [
        (f"ema = {EMA}", BLEND, TOTAL, "ema"),
        (
            "ema = model.weight.detach().clone()",
            "ema = 0.9 * ema + 0.1 * model.weight.detach()",
            "ema.sum()",
            "ema",
        ),
        (
            "pass",
            "[a.mul_(0.9).add_(b.detach(), alpha=0.1) for a, b in zip(averages.values, model.parameters())]",
            "averages.values[0].sum()",
            "averages.values",
        ),
        ("pass", "averages.seen['loss'] += loss.item()", "averages.seen['loss']", "averages.seen"),
        (
            "kept = {'by': averages}",
            "averages.values[0].add_(loss.detach())",
            "averages.values[0].sum()",
            "averages.values",
        ),
        (
            "model.mean = torch.zeros(())",
            "model.mean = 0.9 * model.mean + loss.detach()",
            "model.mean",
            "model.mean",
        ),
        (
            "ema = {}",
            "ema['w'] = 0.9 * ema.get('w', 0.0) + 0.1 * model.weight.detach()",
            "ema['w'].sum()",
            "ema",
        ),
        ("last = collections.deque([0.0], 2)", "last.append(loss.item() + last[-1])", "last[-1]", "last"),
    ],
)
def test_what_is_not_saved_is_named_by_the_way_to_it(
    check: Check, before: str, after: str, value: str, path: str
) -> None:
    report = check(source=script_of(before, after, value))
    (missing,) = report.missing
    assert missing.kind is Kind.VALUE
    assert missing.finding.startswith(f"`{path}` is not saved"), render(report)
    load = rf'{re.escape(path)} = t\.state\.get\("\w+", |if "(\w+)" in t\.state: {re.escape(path)} = t\.state\["\2"\]'
    assert re.search(rf"keep it in t\.state: `({load})", missing.remedy), missing.remedy
    assert ("model.register_buffer('mean', ...)" in missing.remedy) == (path == "model.mean")


@pytest.mark.full
def test_the_remedies_work(check: Check) -> None:
    kept = script_of(f"ema = t.state.setdefault('ema', {EMA})", BLEND, TOTAL)
    assert check(source=kept).passed
    buffer = script_of(
        "model.register_buffer('mean', torch.zeros(()))",
        "model.mean = 0.9 * model.mean + loss.detach()",
        "model.mean",
    )
    assert check(source=buffer).passed


@pytest.mark.full
def test_a_script_that_counts_optimizer_steps_is_checked_at_its_reports(check: Check) -> None:
    reports = "if step % 100 == 0:\n            t.report(loss=t.state['sum'])"
    counting = (
        "from headrace import trial\n"
        "def train(t):\n"
        "    t.state.setdefault('sum', 0.0)\n"
        "    seen = 0\n"
        "    for step in t.steps():\n"
        "        t.state['sum'] += 1 / step\n"
        f"        {reports}\n"
        "trial.main(train, steps=900)\n"
    )
    report = check(source=counting)
    assert report.passed, render(report)
    assert report.restores == 2
    lossy = counting.replace("t.state['sum'] += 1 / step", "seen += 2; t.state['sum'] = seen")
    (missing,) = check(source=lossy).missing
    assert missing.finding == "variable `seen` is 200 when saved, and 0 after the restore"


def test_the_function_of_a_plain_script_is_found(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    assert run_check(script, params={"rate": 0.5}, max_steps=3, launch=launch_segment).passed
    with pytest.raises(
        CheckError, match=r"plain.py reads parameters that have no value here: rate$"
    ) as found:
        run_check(script, launch=launch_segment)
    assert "`headrace check plain.py --param rate=...`" in found.value.remedy
    assert "check the study file instead" in found.value.remedy


@pytest.mark.parametrize(
    ("source", "function"),
    [
        (PLAIN, "train"),
        ("def fit(t):\n    t.report(a=1)\n", "fit"),
        ("def a(t):\n    t.report(a=1)\ndef train(t):\n    t.report(a=1)\n", "train"),
        ("def a(t):\n    t.report(a=1)\ndef b(t):\n    t.report(a=1)\n", None),
        ("def a(t, x):\n    t.report(a=1)\n", None),
        ("def a(x):\n    return x.shape\n", None),
        (PLAIN + "from headrace import trial\ntrial.main(train)\n", None),
        (PLAIN + "import headrace\nheadrace.trial.main(train)\n", None),
        (PLAIN + "from headrace.trial import current\nt = current()\n", None),
        (PLAIN + "from headrace import trial as hr\nhr.main(train)\n", None),
        (PLAIN + "import headrace.trial as ht\nht.main(train)\n", None),
        (PLAIN + "import headrace as h\nt = h.trial.current()\n", None),
        (PLAIN + "import headrace.trial\nheadrace.trial.main(train)\n", None),
        (PLAIN + "from headrace.trial import main as go\ngo(train)\n", None),
        (PLAIN + "from base import *\ntrial.main(train)\n", None),
        (PLAIN + "from base import *\nmain(train)\n", "train"),
        (PLAIN + "from headrace.trial import *\nmain(train)\n", None),
        (PLAIN + "from headrace import trial\nfrom app import main\nmain()\n", "train"),
        ("def train(:\n", None),
    ],
)
def test_which_function_takes_a_trial(tmp_path: Path, source: str, function: str | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert training_function(script) == function


@pytest.mark.full
@pytest.mark.parametrize(
    "ending",
    [
        "from headrace import trial as hr\nhr.main(train, defaults={'rate': 0.1}, steps=5)\n",
        "import headrace.trial as ht\nht.main(train, defaults={'rate': 0.1}, steps=5)\n",
        "import headrace\nstart = headrace.trial.main\nstart(train, defaults={'rate': 0.1}, steps=5)\n",
    ],
)
def test_a_script_that_asks_under_another_name_runs_once(tmp_path: Path, ending: str) -> None:
    script = tmp_path / "asking.py"
    script.write_text(PLAIN + ending)
    report = run_check(script, steps=3, launch=launch_segment)
    assert report.passed, render(report)
    assert report.restores == 2


def test_which_parameters_a_script_reads(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a = t.params['lr']; b = t.params['width'] + t.params['lr'] + x['y'] + t.params[z]\n")
    assert parameters_read(script) == ("lr", "width")
    assert parameters_read(tmp_path / "none.py") == ()


def checked(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "check", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.full
def test_a_script_that_fails_ends_with_its_traceback_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from headrace import trial\nt = trial.current()\n1 / 0\n")
    failed = checked(tmp_path, "broken.py")
    assert failed.returncode == 1
    *_, error, remedy = failed.stderr.splitlines()
    assert error == "ZeroDivisionError: division by zero"
    assert remedy.startswith("Fix it")


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "configuration", "origin"),
    [
        ("", None, "drawn from the space with seed 0, for the study has no baseline"),
        (
            "enqueue: [{rate: 0.5, width: 8, depth: 3, kind: b, other: 0.5}]\n",
            "rate=0.5 width=8 depth=3 kind=b other=0.5",
            "the first configuration of `enqueue`",
        ),
        (
            "baseline: {rate: 0.1, width: 8, depth: 3, kind: a, slope: 0.5}\n",
            "rate=0.1 width=8 depth=3 kind=a slope=0.5",
            "the study's baseline",
        ),
    ],
)
def test_a_study_says_which_configuration_is_checked(
    tmp_path: Path, more: str, configuration: str | None, origin: str
) -> None:
    """In real processes: this is what users type."""
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "study.yaml").write_text(STUDY + more)
    first = checked(tmp_path, "study.yaml")
    assert first.returncode == 0, first.stderr
    line = first.stderr.splitlines()[0]
    assert line.startswith("configuration: rate=")
    assert line.endswith(f"({origin})")
    assert configuration is None or configuration in line
    if configuration is None:
        assert checked(tmp_path, "study.yaml", "--json").stderr.splitlines()[0] == line


@pytest.mark.full
def test_a_metric_that_the_study_asks_for_and_the_script_does_not_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "study.yaml").write_text(STUDY + "constraints: [{metric: latency, at_most: 1}]\n")
    done = checked(tmp_path, "study.yaml")
    assert done.returncode == 0, done.stderr
    assert "latency, which the study needs, was not reported in these 3 steps; reported: total" in done.stderr


@pytest.mark.full
def test_a_study_of_one_step_has_nothing_to_check(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "study.yaml").write_text(STUDY.replace("steps: 3", "steps: 1"))
    done = checked(tmp_path, "study.yaml")
    assert done.returncode == 1
    assert "a single step, so no trial is ever paused" in done.stderr


@pytest.mark.full
def test_a_function_is_named_as_in_a_study_file(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN + "\ndef more(t):\n    train(t)\n    t.report(total=1.0)\n")
    done = checked(tmp_path, "plain.py:train", "--param", "rate=0.5", "--steps", "3")
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_of_a_study_file_another_function_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        PLAIN + "\ndef more(t):\n    t.report(other=1.0)\n    t.report(other=2.0)\n"
    )
    (tmp_path / "study.yaml").write_text(STUDY)
    done = checked(tmp_path, "study.yaml", "--callable", "more", "--json")
    assert '"other"' in done.stdout, done.stderr
    assert '"total"' not in done.stdout


@pytest.mark.full
def test_a_checkpoint_of_the_scripts_own_in_its_folder_is_named_where_two_runs_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "own.py"
    before = "if os.path.exists('own.pt'): model.load_state_dict(torch.load('own.pt'))"
    source = TRAIN.replace("BEFORE", before).replace("AFTER", "torch.save(model.state_dict(), 'own.pt')")
    script.write_text("import os\n" + source.replace("VALUE", "loss.item()"))
    said = render(run_check(script, steps=2, launch=launch_segment))
    assert "not deterministic by itself" in said
    assert "the runs wrote own.pt into the working folder" in said
    assert "put t.id into its name; delete it before the next run" in said


@pytest.mark.full
def test_the_check_says_that_steps_start_again_in_a_script_with_numbered_checkpoints_of_its_own(
    tmp_path: Path,
) -> None:
    source = TRAIN.replace("    t.track(model, optimizer)\n", "")
    before = "path = f'ckpt-{t.number}.pt'; os.path.exists(path) and model.load_state_dict(torch.load(path))"
    source = source.replace("BEFORE", before).replace("AFTER", "torch.save(model.state_dict(), path)")
    script = tmp_path / "own.py"
    script.write_text("import os\n" + source.replace("VALUE", "loss.item()"))
    said = render(run_check(script, steps=2, folder=tmp_path, launch=launch_segment))
    assert (
        "a trial that loads ckpt-0.pt after a pause continues with its weights, but its steps are counted"
        in said
    )
    assert "put t.id" not in said


def test_a_check_runs_where_trials_run_and_names_what_it_leaves_there(tmp_path: Path) -> None:
    """Like the trials of a study, in its `working_dir`: it reads files there, and writes some."""
    (tmp_path / "data.txt").write_text("1")
    script = tmp_path / "code" / "script.py"
    script.parent.mkdir()
    source = PLAIN.replace(
        '    t.state.setdefault("sum", 0.0)',
        '    open("log.csv", "w").write(open("data.txt").read())\n    t.state.setdefault("sum", 0.0)',
    )
    script.write_text(source)
    report = run_check(script, params={"rate": 0.5}, max_steps=3, folder=tmp_path, launch=launch_segment)
    assert report.passed
    assert report.left_files == ("log.csv",)
    assert (
        "  log.csv changed in the folder of the runs while they ran. If the script wrote it, delete it"
        in render(report)
    )
