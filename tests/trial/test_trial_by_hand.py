"""A script run by hand: parameters from the command line, a table of reports, and checkpoints if wanted."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import trial

DEFAULTS = {"lr": 0.5, "layers": 2, "act": "relu", "batch_norm": True}


def fit(t: trial.Trial) -> None:
    t.state.setdefault("total", 0.0)
    for step in t.steps():
        t.state["total"] += t.params["lr"] * step
        t.report(loss=t.state["total"], params=t.params["layers"] * t.params["batch_norm"])


def table(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_reports_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    trial.main(fit, defaults=DEFAULTS, steps=3, argv=[])
    assert table(capsys) == [
        ["step", "loss", "params"],
        ["1", "0.5", "2"],
        ["2", "1.5", "2"],
        ["3", "3", "2"],
    ]


def test_the_command_line_overrides_by_type(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--lr", "2", "--layers", "5", "--batch-norm", "no", "--steps", "1", "--seed", "9"]
    trial.main(fit, defaults=DEFAULTS, steps=3, argv=argv)
    assert table(capsys)[1:] == [["1", "2", "0"]]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--layers", "2.5"], "argument --layers: invalid int value: '2.5'"),
        (["--batch_norm", "maybe"], "'maybe' is neither true nor false"),
        (["--momentum", "1"], "unrecognized arguments: --momentum 1"),
    ],
)
def test_a_wrong_command_line_is_reported(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        trial.main(fit, defaults=DEFAULTS, steps=3, argv=argv)
    assert message in capsys.readouterr().err


def test_a_step_past_the_budget_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def count(t: trial.Trial) -> None:
        for epoch in t.steps():
            t.report(loss=1.0, step=100 * epoch)

    remedy = r"leave step= out to count turns. To count 100 steps a turn instead, give the run steps=300\."
    with pytest.raises(ValueError, match=rf"step 100 is past the full budget of 3 steps.*{remedy}"):
        trial.main(count, steps=3, argv=[])
    assert table(capsys) == []
    trial.main(count, steps=300, argv=[])
    assert [row[0] for row in table(capsys)] == ["step", "100", "200", "300"]


def test_a_parameter_cannot_take_an_options_name() -> None:
    with pytest.raises(ValueError, match="parameter 'steps' has the name of an option of its own"):
        trial.main(fit, defaults={"steps": 3}, argv=[])


def test_an_interrupted_run_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(t: trial.Trial) -> None:
        for step in t.steps():
            if step == 3:
                raise KeyboardInterrupt
            t.state["total"] = t.state.get("total", 0.0) + step
            t.report(loss=t.state["total"])

    folder = tmp_path / "run"
    argv = ["--checkpoints", str(folder)]
    with pytest.raises(KeyboardInterrupt):
        trial.main(interrupted, defaults=DEFAULTS, steps=4, argv=argv)
    assert [path.name.split("-")[1] for path in folder.glob("step-*")] == ["00000002"], (
        "only the newest is kept"
    )
    capsys.readouterr()
    trial.main(fit, defaults=DEFAULTS, steps=4, argv=argv)
    assert table(capsys)[2:] == [["3", "4.5", "2"], ["4", "6.5", "2"]]
    with pytest.raises(ValueError, match="belongs to another run"):
        trial.main(fit, defaults=DEFAULTS, steps=4, argv=[*argv, "--lr", "1"])


def test_what_the_script_raises_passes_through() -> None:
    def broken(_: trial.Trial) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trial.main(broken, steps=1, argv=[])


def test_importing_the_trial_api_is_cheap() -> None:
    """A training script does not pay for gRPC, pydantic, NumPy or PyTorch by importing it."""
    program = "import sys; import headrace.trial; print({name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert not ast.literal_eval(loaded) & {"torch", "numpy", "grpc", "pydantic", "typer"}
