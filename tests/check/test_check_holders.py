"""`headrace check` finds state in every kind of place, is silent about what is tracked, and agrees with the truth."""

from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

import holders
import pytest
import twin
from forked import launch_segment
from holders import HOLDERS, Place, Read

from headrace.check import CheckReport, render, run_check
from headrace.check.classes import Classes
from headrace.check.discover import Found, walk
from headrace.check.plain_values import items_of, written_out
from headrace.check.variables import Variables, is_plain


def checked(folder: Path, kind: str, place: Place, read: Read, *, tracked: bool) -> tuple[CheckReport, bool]:
    """What the check says, and whether a pause really changes nothing."""
    script = folder / "script.py"
    script.write_text(holders.script(kind, place, read, tracked=tracked))
    report = run_check(script, folder=folder, steps=3, launch=launch_segment)
    return report, twin.same(script, folder)


ROTATED = [(kind, list(Place)[number % len(Place)]) for number, kind in enumerate(HOLDERS)]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "place"), ROTATED)
def test_what_is_not_tracked_is_named(tmp_path: Path, kind: str, place: Place) -> None:
    report, unchanged = checked(tmp_path, kind, place, Read.CURVE, tracked=False)
    assert not unchanged
    assert not report.passed
    path = holders.path_of(kind, place)
    assert any(f"`{path}" in found.finding for found in report.missing), render(report)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "place"), ROTATED)
def test_what_is_tracked_passes_without_a_warning(tmp_path: Path, kind: str, place: Place) -> None:
    report, unchanged = checked(tmp_path, kind, place, Read.CURVE, tracked=True)
    assert unchanged
    assert report.passed, render(report)
    assert report.warnings == ()


class Key:
    pass


def test_a_key_that_is_an_object_has_the_same_name_in_each_process() -> None:
    assert items_of("held", {Key(): 1, "a": 2, ("x", 1): 3}) == [
        ("held[0]", 1),
        ("held['a']", 2),
        ("held[2]", 3),
    ]


def test_a_member_and_a_function_are_found_on_every_way_to_them() -> None:
    def rate() -> float:
        return 1.0

    found: list[Found] = list(
        walk([("a", Place.LOCAL), ("b", Place.LOCAL), ("f", rate), ("g", rate)], is_plain)
    )
    assert [one.path for one in found] == ["a", "b", "f", "g"]
    assert written_out(Place.LOCAL) == "Place.LOCAL"


def test_an_object_that_is_called_by_its_class_is_looked_at_beside_the_class() -> None:
    """For example a callback that only a trainer holds: `Stop.bad` is its attribute, and `Stop` is a class of the
    script."""
    values = Variables(Classes())
    values.add(Found("Key", Key, own=True))
    assert values.found["Key"].startswith("function Key")
    values.holders.clear()
    values.add(Found("Key", Key(), own=True))
    assert values.holders == {"Key": True}


def test_which_object_a_weak_dictionary_leads_to_is_seen() -> None:
    one = Key()
    one.n = 3  # type: ignore[attr-defined]  # as a script may
    found = [*walk([("boxes", [one]), ("held", WeakValueDictionary(a=one))], is_plain)]
    assert {"boxes[0].n", "held['a'].n"} <= {each.path for each in found}


COUNTED = """
from headrace import trial

def generating():
    n = 0
    while True:
        n += 1
        yield n

def closing():
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    return count

def train(t):
    held = HELD
    t.state["v"] = 1.0
    for step in t.steps():
        t.report(loss=NEXT)

trial.main(train, steps=3)
"""


@pytest.mark.parametrize(
    ("held", "following", "finding"),
    [
        (
            "generating()",
            "next(held)",
            "`held` is an iterator, which no checkpoint can hold: it starts again",
        ),
        ("closing()", "held()", "variable `n` is 1 when saved, and 0 after the restore"),
    ],
)
def test_what_a_generator_or_a_closure_counts_is_no_variable_of_the_loop(
    check: Callable[..., CheckReport], held: str, following: str, finding: str
) -> None:
    report = check(("HELD", held), ("NEXT", following), source=COUNTED)
    assert [missing.finding for missing in report.missing] == [finding], render(report)
    assert not any("`n = " in missing.remedy for missing in report.missing)  # the loop cannot set it
