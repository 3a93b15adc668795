"""`headrace check` names what `t.state` holds without a copy: a restore separates it from the object that it
shared."""

from collections.abc import Callable
from pathlib import Path

import pytest
from forked import launch_segment

from headrace.check import CheckReport, Kind, render, run_check

Check = Callable[..., CheckReport]

BEST = """
import copy
from headrace import trial
IMPORT

class Net:
    def __init__(self):
        self.w = VALUE
    def state_dict(self):
        return {"w": self.w}
    def load_state_dict(self, state):
        self.w[:] = state["w"]

def train(t):
    net = Net()
    t.track(net=net)
    t.state.setdefault("best", 1e9)
    for epoch in t.steps():
        for i in (0, 1):
            net.w[i] -= t.params["lr"] * (net.w[i] - epoch % 3)
        loss = float(sum(w * w for w in net.w))
        if loss < t.state["best"]:
            t.state["best"] = loss
            t.state["best_w"] = COPY
        if epoch % 8 == 0:
            net.load_state_dict(t.state["best_w"])
        t.report(loss=loss)

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.1}, steps=17)
"""
MODULE = """
import copy
import torch
from headrace import trial

def train(t):
    torch.manual_seed(1)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=t.params["lr"])
    t.track(model=net, optimizer=optimizer)
    t.state.setdefault("best", 1e9)
    for epoch in t.steps():
        optimizer.zero_grad()
        loss = (net(torch.ones(1, 2)) - epoch % 3).square().sum()
        loss.backward()
        optimizer.step()
        if loss.item() < t.state["best"]:
            t.state["best"] = loss.item()
            t.state["best_w"] = COPY
        if epoch % 8 == 0:
            net.load_state_dict(t.state["best_w"])
        t.report(loss=loss.item())

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.1}, steps=10)
"""
PLAIN = BEST.replace("IMPORT", "").replace("VALUE", "[4.0, -3.0]")
NUMPY = BEST.replace("IMPORT", "import numpy").replace("VALUE", "numpy.array([4.0, -3.0])")


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("source", "owner"), [(PLAIN, "net"), (NUMPY, "net"), (MODULE, "model")], ids=["list", "NumPy", "PyTorch"]
)
def test_a_best_state_without_a_copy_is_named(tmp_path: Path, source: str, owner: str) -> None:
    """Formerly the check said that nothing explains the difference, and to look outside the script's variables."""
    script = tmp_path / "best.py"
    script.write_text(source.replace("COPY", "net.state_dict()"))
    report = run_check(script, folder=tmp_path, launch=launch_segment)
    assert [missing.kind for missing in report.missing] == [Kind.VALUE], render(report)
    assert f't.state["best_w"] is no copy: it changes with the tracked `{owner}`' in report.missing[0].finding
    assert report.missing[0].remedy == 'keep a copy: t.state["best_w"] = copy.deepcopy(...)'


@pytest.mark.cases(1)
@pytest.mark.parametrize("source", [PLAIN, NUMPY, MODULE], ids=["list", "NumPy", "PyTorch"])
def test_with_the_remedy_it_passes(tmp_path: Path, source: str) -> None:
    script = tmp_path / "best.py"
    script.write_text(source.replace("COPY", "copy.deepcopy(net.state_dict())"))
    report = run_check(script, folder=tmp_path, launch=launch_segment)
    assert report.passed, render(report)


def test_objects_that_answer_for_any_attribute_are_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    odd = """
class Remote:
    def __getattr__(self, name):
        raise ConnectionError(name)

class Any:
    def __getattr__(self, name):
        return lambda: self

"""
    source = PLAIN.replace("class Net:", odd + "class Net:")
    source = source.replace(
        "        self.w = ", "        self.remote, self.any = [Remote()], [Any()]\n        self.w = "
    )
    script.write_text(source.replace("COPY", "copy.deepcopy(net.state_dict())"))
    report = run_check(script, folder=tmp_path, launch=launch_segment)
    assert report.passed, render(report)
