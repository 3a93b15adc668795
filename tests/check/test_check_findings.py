"""`headrace check` on scripts that lose state in less obvious ways, and on scripts that it must not blame."""

from collections.abc import Callable
from pathlib import Path

import pytest
from forked import launch_segment

from headrace.check import CheckError, CheckReport, Kind, render, run_check

Check = Callable[..., CheckReport]

TRACK = "t.track(model=model, optimizer=opt, lr_scheduler=sched, batches=batches, noise=noise)"
COUNTS = "if it counts the loop, write `for epoch in t.steps()`"
COMPUTED = "if it is computed, save what it is computed from"
PUT_BACK = "and call t.track(), which restores the random generators"
LOOP = "for epoch in t.steps():"
REPORT = "t.report(loss=loss, luck=random.random() + numpy.random.rand())"
GROW = "data = inputs, targets[:, 0]; forest.n_estimators += 1; forest.fit(*data); "
EXAMPLES = Path(__file__).parents[2] / "examples"


def findings(report: CheckReport) -> list[tuple[Kind, str]]:
    return [(missing.kind, missing.finding) for missing in report.missing]


def test_a_change_after_the_report_is_told_from_a_missing_piece(check: Check) -> None:
    report = check(
        ("        sched.step()\n        " + REPORT, "        " + REPORT + "\n        sched.step()")
    )
    # The schedule also writes the learning rate into the optimizer: one cause, two objects.
    assert findings(report) == [
        (Kind.SETTINGS, "AdamW `opt` changes after t.report(...), so a pause loses the change"),
        (Kind.SCHEDULE, "CosineAnnealingLR `sched` changes after t.report(...), so a pause loses the change"),
    ]
    assert {missing.remedy for missing in report.missing} == {
        "make t.report(...) the last line of the loop's body"
    }


def test_weights_initialised_after_track_are_told_from_untracked_ones(check: Check) -> None:
    report = check((TRACK, TRACK + "\n    nn.init.normal_(model[0].weight)"))
    assert findings(report) == [
        (Kind.WEIGHTS, "Sequential `model` is restored by t.track(...), and changed before the loop")
    ]


@pytest.mark.full
def test_an_object_that_does_not_load_what_it_saved_is_named(check: Check) -> None:
    forgetful = """class Average:
    value = 0.0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        pass

def train(t):
    average = Average()"""
    report = check(
        ("def train(t):", forgetful),
        ("noise=noise)", "noise=noise, average=average)"),
        (REPORT, "average.value += loss.item(); t.report(loss=average.value)"),
    )
    (missing,) = report.missing
    assert missing.kind is Kind.VALUE
    assert "Average `average` is tracked, but its load_state_dict() does not restore" in missing.finding


def test_a_generator_seeded_after_the_restore_is_named_with_its_line(check: Check) -> None:
    report = check(
        (TRACK, TRACK + "\n    torch.manual_seed(t.seed)"),
        (LOOP, "for epoch in range(t.step + 1, t.max_steps + 1):"),
    )
    (missing,) = report.missing
    assert missing.kind is Kind.RNG
    assert (
        missing.finding
        == "torch.manual_seed (script.py:18) seeds again after the restore: the random numbers repeat"
    )


COUNT = (REPORT, "seen += 2; t.report(loss=loss, seen=seen)")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("place", "seeds"),
    [
        (LOOP, "seen = 0; torch.manual_seed(t.seed)\n    " + LOOP),
        (LOOP, "seen = 0\n    " + LOOP + "\n        torch.manual_seed(epoch); random.seed(epoch)"),
    ],
    ids=["before the loop, which restores", "in each step, with its number"],
)
def test_a_seed_that_changes_no_random_number_is_not_blamed(check: Check, place: str, seeds: str) -> None:
    report = check((place, seeds), COUNT)
    assert findings(report) == [(Kind.VALUE, "variable `seen` is 2 when saved, and 0 after the restore")], (
        render(report)
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("before", "value", "path", "remedy"),
    [
        (
            "def smooth(value, hist=[]):\n    hist.append(value); return sum(hist)\n",
            "smooth(loss.item())",
            "smooth(hist)",
            'keep it in t.state, which is saved: call smooth(..., hist=t.state.setdefault("hist", ...))',
        ),
        (
            "def smooth(value, *, seen={'sum': 0.0}):\n    seen['sum'] += value; return seen['sum']\n",
            "smooth(loss.item())",
            "smooth(seen)",
            'keep it in t.state, which is saved: call smooth(..., seen=t.state.setdefault("seen", ...))',
        ),
        (
            "def smooth(value):\n    smooth.sum += value; return smooth.sum\nsmooth.sum = 0.0\n",
            "smooth(loss.item())",
            "smooth.sum",
            'keep it in t.state: `smooth.sum = t.state.get("sum", 0.0)` before the loop',
        ),
        (
            "class Meter:\n    sum = 0.0\ndef add(value):\n    Meter.sum += value; return Meter.sum\n",
            "add(loss.item())",
            "Meter.sum",
            'keep it in t.state: `Meter.sum = t.state.get("sum", 0.0)` before the loop',
        ),
        (
            "import counting\n",
            "counting.add(loss.item())",
            "counting.total",
            'keep it in t.state: `counting.total = t.state.get("total", 0.0)` before the loop',
        ),
    ],
)
def test_state_in_functions_classes_and_modules_is_found(
    check: Check, tmp_path: Path, before: str, value: str, path: str, remedy: str
) -> None:
    (tmp_path / "counting.py").write_text(
        "total = 0.0\ndef add(value):\n    global total\n    total += value\n    return total\n"
    )
    report = check(("def train(t):", f"{before}\ndef train(t):"), (REPORT, f"t.report(mean={value})"))
    (missing,) = report.missing
    assert f"`{path}` " in missing.finding, render(report)
    assert missing.remedy.startswith(remedy)


def test_what_is_too_large_to_look_at_is_named_where_nothing_explains(check: Check) -> None:
    report = check(
        (LOOP, "book = {n: 0.0 for n in range(2000)}\n    " + LOOP),
        (REPORT, "book[1999] += 1.0; t.report(kept=book[1999])"),
    )
    assert report.missing == ()
    assert "beside book, too large or too deep to inspect completely" in render(report)


@pytest.mark.full
def test_a_second_model_is_to_be_tracked_under_a_name_of_its_own(check: Check) -> None:
    report = check(
        ("noise = torch.Generator()", "average = nn.Linear(3, 1); noise = torch.Generator()"),
        (REPORT, "average.weight.data.mul_(0.9); " + REPORT),
    )
    assert findings(report) == [
        (Kind.WEIGHTS, "Linear `average` is not tracked: the weights are those of a new model")
    ]
    assert report.missing[0].remedy == "add average=average to t.track(...)"


@pytest.mark.full
def test_what_an_object_of_the_scripts_own_counts_is_named(check: Check) -> None:
    report = check(
        (
            "def train(t):",
            "class Meter:\n    total = 0\n\ndef train(t):\n    meter = Meter(); meter.total = 0.0",
        ),
        (REPORT, "meter.total += loss.item(); t.report(loss=meter.total)"),
    )
    (missing,) = report.missing
    assert "`meter.total`" in missing.finding
    assert "0.0 after the restore" in missing.finding


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("loop", "found", "remedy"),
    [
        (
            "range(1, t.max_steps + 1)",
            "`epoch` is 1 at step 2, and 2 without a pause: it starts again",
            f"{COUNTS}, or start at t.step + 1, read before the loop; {COMPUTED}",
        ),
        (
            "range(9)",
            "`epoch` is 0 at step 2, and 1 without a pause: it starts again",
            f"{COUNTS}, which counts from 1, or start at t.step, read before the loop; {COMPUTED}",
        ),
        (
            "(n * 0.1 for n in range(9))",
            "it reports outside t.steps(): a loop of its own, as over range(...), restarts in each process",
            f"loop over t.steps(), or begin after t.step, read before the loop, {PUT_BACK}",
        ),
    ],
)
def test_a_loop_that_starts_over_is_named(check: Check, loop: str, found: str, remedy: str) -> None:
    body = ("blurred = inputs[batch]", "blurred = epoch + inputs[batch]")
    (missing,) = check((LOOP, f"for epoch in {loop}:"), body).missing
    assert (missing.kind, missing.finding, missing.remedy) == (Kind.STEP, found, remedy)


@pytest.mark.full
def test_a_loop_of_ones_own_that_continues_or_whose_count_nothing_reads_passes(check: Check) -> None:
    body = ("blurred = inputs[batch]", "blurred = epoch + inputs[batch]")
    assert check((LOOP, "for epoch in range(t.step, t.max_steps):"), body).passed
    assert check((LOOP, "for epoch in range(9):")).passed


def test_a_step_that_is_reported_again_and_again_is_named(check: Check) -> None:
    """Its two straight runs are compared at the same report, so it is not mistaken for nondeterminism."""
    report = check(
        (LOOP, "for epoch in range(t.step + 1, t.max_steps + 1):"),
        ("            opt.step()\n", "            opt.step()\n            t.report(loss=loss, step=epoch)\n"),
        ("        " + REPORT + "\n", ""),
    )
    assert report.nondeterminism is None
    (missing,) = report.missing
    assert (missing.kind, missing.remedy) == (Kind.STEP, "report each step once, when it is done")
    assert "is reported 3 times" in missing.finding


def test_a_counter_and_an_iterator_of_the_scripts_own_are_suspected(check: Check) -> None:
    report = check(
        (LOOP, "stream = iter(sorted(range(20), key=lambda i: i % 7)); seen = 0\n    " + LOOP),
        (
            "for batch in batches.take(3):",
            "for batch in ([next(stream)], [next(stream)]):\n            seen += 1",
        ),
        ("blurred = inputs[batch]", "blurred = seen + inputs[batch]"),
    )
    assert findings(report) == [
        (Kind.VALUE, "variable `seen` is 2 when saved, and 0 after the restore"),
        (Kind.DATA, "`stream` is an iterator, which no checkpoint can hold: it starts again"),
    ]
    assert report.missing[0].remedy.startswith(
        'keep it in t.state: `seen = t.state.get("seen", 0)` before the loop'
    )


def test_state_hidden_in_objects_and_closures_is_found(check: Check) -> None:
    report = check(
        source="""
import random
import torch
from headrace import trial

class Trainer:
    def __init__(self, rng):
        self.parts = {"net": torch.nn.Linear(2, 1)}
        self.optimizer = torch.optim.SGD(self.parts["net"].parameters(), lr=0.1, momentum=0.9)
        self.noise = lambda: rng.random()

    def fit(self, t):
        t.track(model=self.parts["net"])
        for _ in t.steps():
            self.optimizer.zero_grad()
            loss = (self.parts["net"](torch.ones(1, 2)) - self.noise()).square().sum()
            loss.backward()
            self.optimizer.step()
            t.report(loss=loss)

Trainer(random.Random(3)).fit(trial.current(steps=3))
"""
    )
    assert findings(report) == [
        (Kind.MOMENTS, "SGD `self.optimizer` is not tracked: its moments start from nothing"),
        (Kind.RNG, "Random `rng` is not tracked: the random numbers repeat"),
    ]


def test_a_script_that_is_not_deterministic_is_not_blamed_on_its_checkpoints(check: Check) -> None:
    report = check(("luck=random.random()", "luck=random.SystemRandom().random()"))
    assert not report.passed
    assert report.missing == ()
    assert report.nondeterminism is not None
    assert (report.nondeterminism.step, report.nondeterminism.what) == (1, "luck")
    assert "this script is not deterministic by itself" in render(report)


def test_without_track_all_that_is_lost_is_listed(check: Check) -> None:
    report = check((TRACK, ""))
    (missing,) = report.missing
    assert "nothing is tracked" in missing.finding
    assert "t.state['model'] = pickle.dumps(model)" in missing.remedy
    assert "1. state of the script: nothing is tracked" in render(report)
    assert {"not tracked: Sequential `model`", "not tracked: AdamW `opt`"} <= set(missing.evidence)


def test_a_restore_that_fails_is_a_finding(check: Check) -> None:
    report = check(
        ("nn.Linear(3, 8), nn.Tanh()", "nn.Linear(3, 8), *[nn.Identity()] * (t.resumed), nn.Tanh()")
    )
    (missing,) = report.missing
    assert missing.finding.startswith(
        "the resumed process fails: RuntimeError: Error(s) in loading state_dict"
    )


@pytest.mark.full
def test_nothing_else_than_the_trial_is_saved_by_t_state(check: Check) -> None:
    """Values kept in `t.state` pass; the same values in variables do not."""
    changes = (
        (LOOP, "t.state['best'] = float('inf')\n    " + LOOP),
        (REPORT, "BEST; t.report(best=t.state['best'])"),
    )
    assert check(*changes, ("BEST", "t.state['best'] = min(t.state['best'], loss.item())")).passed


@pytest.mark.full
def test_a_pickled_estimator_in_t_state_is_judged_by_its_values(check: Check) -> None:
    """Reading it and pickling it again changes the bytes of its pickle, but none of its predictions."""
    keeps = (
        (
            "import torch\n",
            "import pickle\nimport torch\nfrom sklearn.ensemble import RandomForestRegressor\n",
        ),
        (LOOP, "forest = FOREST\n    " + LOOP),
        (REPORT, f"{GROW}t.state['forest'] = pickle.dumps(forest); t.report(score=forest.score(*data))"),
    )
    new = "RandomForestRegressor(0, warm_start=True, random_state=0)"
    old = f"pickle.loads(t.state['forest']) if 'forest' in t.state else {new}"
    report = check(*keeps, ("FOREST", old))
    assert report.passed, render(report)
    assert not check(*keeps, ("FOREST", new)).passed


@pytest.mark.full
def test_a_callable_is_checked_with_the_parameters_given(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "def fit(t):\n"
        "    t.state.setdefault('sum', 0.0)\n"
        "    for step in t.steps():\n"
        "        t.state['sum'] += t.params['rate'] / step\n"
        "        t.report(total=t.state['sum'])\n"
    )
    seen: list[tuple[str, int, int]] = []
    report = run_check(
        script,
        callable="fit",
        params={"rate": 0.5},
        steps=2,
        launch=launch_segment,
        progress=lambda what, done, total: seen.append((what, done, total)),
    )
    assert report.passed
    assert seen == [
        ("straight run", 0, 3),
        ("resumed run, process 1", 1, 3),
        ("resumed run, process 2", 2, 3),
    ]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise KeyError('lr')", "fails by itself, without any pause: KeyError: 'lr'"),
        ("print('trains by itself')", "never asks for a trial"),
        ("from headrace import trial\ntrial.main(lambda t: None, steps=3)", "reported 0 times"),
    ],
)
def test_a_script_that_does_not_run_is_an_error(check: Check, source: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        check(source=source)


@pytest.mark.full
def test_a_script_that_fails_by_itself_may_work_as_a_study(check: Check) -> None:
    with pytest.raises(CheckError) as caught:
        check(source="raise KeyError('lr')")
    assert "by hand" not in caught.value.remedy
    assert "check the study file, which gives it parameters and steps" in caught.value.remedy


def test_a_missing_script_and_too_few_steps_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="there is no script") as caught:
        run_check(tmp_path / "nothing.py")
    assert caught.value.remedy == "Give the path of a script, or of a study file."
    (tmp_path / "one.py").write_text("")
    with pytest.raises(CheckError, match="at least 2"):
        run_check(tmp_path / "one.py", steps=1)


@pytest.mark.full
def test_in_real_processes_of_its_own(tmp_path: Path) -> None:
    """The processes that users get: new interpreters. This script needs no PyTorch."""
    script = tmp_path / "train.py"
    script.write_text(
        "import random\n"
        "from headrace import trial\n"
        "def train(t):\n"
        "    luck = random.Random(t.seed)\n"
        "    t.state['kept'] = 0\n"
        "    for step in t.steps():\n"
        "        t.state['kept'] += 1\n"
        "        t.report(value=luck.random() + random.random() + t.state['kept'])\n"
        "trial.main(train, steps=5)\n"
    )
    report = run_check(script, steps=2)
    assert findings(report) == [(Kind.RNG, "Random `luck` is not tracked: the random numbers repeat")]


@pytest.mark.full
def test_loader_workers_that_fetch_ahead_are_suspected(check: Check) -> None:
    loader = "loader = torch.utils.data.DataLoader(range(20), batch_sampler=batches, num_workers=1)\n    "
    report = check(
        (LOOP, loader + "for epoch in range(9):"),
        ("for batch in batches.take(3):", "for batch in loader:"),
        ("        sched.step()\n        " + REPORT, "            " + REPORT),
    )
    (missing,) = report.missing
    assert missing.finding == (
        "the workers of DataLoader `loader` fetch batches ahead of the loop: a save skips them"
    )


@pytest.mark.full
def test_a_difference_that_nothing_explains_is_still_a_failure(check: Check) -> None:
    opened = 'log, steps = open("/dev/null", "w"), t.steps()\n    for epoch in steps:'
    report = check((REPORT, "t.report(resumed=t.resumed)"), (LOOP, opened))
    assert report.missing == ()
    assert "nothing that can be inspected explains it" in render(report)
    assert "but: resumed at step 2 is 0.0 straight, 1.0 resumed" in render(report)


@pytest.mark.full
@pytest.mark.parametrize(
    ("example", "smaller"),
    [("digits", ("", "")), ("charlm", ("ITERATIONS = 150", "ITERATIONS = 3"))],
)
def test_the_examples_pass(check: Check, example: str, smaller: tuple[str, str]) -> None:
    source = (EXAMPLES / example / "train.py").read_text()
    narrow = {"width": 8, **({"batch_size": 128} if example == "digits" else {"depth": 1})}
    report = check(smaller, source=source, steps=2, params=narrow)
    assert report.passed, render(report)


@pytest.mark.parametrize(
    "held",
    [
        "class Held:\n    def __init__(self): self.size = (3, 4)\nheld = Held()",
        "class Held:\n    def size(self): return 3\n    def numel(self): return 'many'\nheld = Held()",
        "class Held:\n    size = property(lambda self: 3)\nheld = Held",
    ],
)
def test_other_classes_may_call_anything_size(check: Check, held: str) -> None:
    assert check(
        ("def train", f"{held}\n\ndef train"), ("    noise =", "    mine = held\n    noise =")
    ).passed


def test_a_fault_of_the_check_is_not_blamed_on_the_script(check: Check) -> None:
    fault = "from headrace.check import variables; variables.is_plain = int"
    with pytest.raises(
        CheckError, match=r"failed while it inspected the script's variables: (Type|Value)Error"
    ) as found:
        check(("import random", f"import random; {fault}"))
    assert "says nothing about script.py. Please report it" in found.value.remedy
