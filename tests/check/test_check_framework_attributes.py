"""Which attributes of a trainer of the script's own class the library must save."""

import sys
from types import ModuleType

import pytest

from headrace.check import discover
from headrace.check.framework_attributes import of_library
from headrace.check.settings import EVALUATING, TRAINING
from headrace.check.snapshot import Framework, Moment, SegmentResult, Snapshot
from headrace.check.unsaved import unsaved

LIBRARY = """
class Base:
    def save(self):
        self.saved_at = 1

class Trainer(Base):
    def __init__(self, state):
        self.state, self._loss = state, None
        self.state.best = 0.0
        self.gather, self.metrics = self.save, None

    @property
    def rate(self):
        return self._rate

    @rate.setter
    def rate(self, value):
        self._rate = value

class TrainerCallback:
    def __init__(self):
        self.bad = 0
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library whose classes have the same names as those of transformers."""
    module = ModuleType("transformers.trainer")
    module.__file__ = "/site-packages/transformers/trainer.py"
    exec(compile(LIBRARY, module.__file__, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def walked(value: object) -> set[str]:
    found = discover.walk([("it", value)], lambda one: one is None or isinstance(one, int | float))
    return {one.path.removeprefix("it.") for one in found if one.own and one.path != "it"}


def test_what_the_trainer_sets_on_itself_is_not_the_scripts(library: ModuleType) -> None:
    class Mine(library.Trainer):  # type: ignore[name-defined,misc]  # made above
        def __init__(self) -> None:
            super().__init__(ModuleType("state"))
            self.rate, self.saved_at = 0.1, 2
            self.average, self.best, self._own = 1.0, 0.0, 2
            self.metrics = walked

    mine = Mine()
    of_library = {"state", "_loss", "_rate", "saved_at", "gather"}
    assert vars(mine).keys() == of_library | {"average", "best", "_own", "metrics"}
    assert walked(mine) == {"average", "best", "_own", "metrics"}, "metrics is a function of the script"


def test_what_a_library_saves_only_when_it_is_asked_to_is_still_the_scripts(library: ModuleType) -> None:
    class Stop(library.TrainerCallback):  # type: ignore[name-defined,misc]  # made above
        pass

    assert walked(Stop()) == {"bad"}


def test_what_only_a_method_that_a_library_keeps_leads_to_is_called_by_its_class(library: ModuleType) -> None:
    class Digits:
        def __init__(self) -> None:
            self.lr = 0.1

        def log(self) -> None:
            pass

    callback, digits = library.TrainerCallback(), Digits()
    callback.log = digits.log  # as Lightning does
    hidden = {one.path: one.own for one in discover.walk([("callback", callback)], lambda _: False)}
    assert {"Digits": False, "Digits.lr": False}.items() <= hidden.items()
    assert not any("__self__" in path for path in hidden)
    kept = {one.path for one in discover.walk([("log", digits.log)], lambda _: False)}
    assert "log.__self__.lr" in kept


def test_a_way_through_a_librarys_private_attribute_is_the_last_of_its_length(library: ModuleType) -> None:
    callback, trainer = library.TrainerCallback(), library.Trainer(ModuleType("state"))
    callback._optimizer = trainer.optimizer = object()
    found = discover.walk(
        [("callback", callback), ("trainer", trainer)], lambda one: not hasattr(one, "__dict__")
    )
    assert [one.path for one in found if one.value is trainer.optimizer][:1] == ["trainer.optimizer"]


def segment(framework: Framework | None) -> SegmentResult:
    """A process that starts its loop with a model in training mode, and reports after it has evaluated it."""
    begun, reported = (
        Snapshot(
            moment=moment,
            step=1,
            pieces=(),
            variables={},
            holders={},
            defaults={},
            iterators=(),
            settings={"model": mode},
        )
        for moment, mode in ((Moment.BEGUN, TRAINING), (Moment.REPORTED, EVALUATING))
    )
    return SegmentResult(
        attached=True, resume_step=0, reports=(), snapshots=(begun, reported), framework=framework
    )


def test_a_mode_that_the_trainer_sets_in_each_step_is_not_suspected() -> None:
    assert len(unsaved([segment(None)] * 2)) == 1
    assert len(unsaved([segment(Framework.LIGHTNING)] * 2)) == 1
    assert unsaved([segment(Framework.TRANSFORMERS)] * 2) == ()


def test_what_a_wrapper_of_a_model_sets_on_itself_is_not_the_scripts() -> None:
    from torch.nn.parallel import DistributedDataParallel

    set_by_it = of_library(DistributedDataParallel, lambda module: module == "train")
    assert {"_has_rebuilt_buckets", "_lazy_init_ran"} <= set_by_it
