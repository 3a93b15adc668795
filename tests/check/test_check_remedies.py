"""The remedies of `headrace check` are the code that its documentation teaches."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from forked import launch_segment

from headrace.check import run_check
from headrace.check.discover import globals_of
from headrace.check.remedies import Keys, how_kept
from headrace.check.snapshot import Kind, Moment, Piece, SegmentResult, Snapshot


def looked(
    moment: Moment, variables: dict[str, str], keys: tuple[str, ...] = (), of_globals: tuple[str, ...] = ()
) -> Snapshot:
    state = Piece(key="t.state", kind=Kind.VALUE, label="t.state", parts=dict.fromkeys(keys, "0"))
    return Snapshot(
        moment=moment,
        step=1,
        pieces=(state,),
        variables=variables,
        holders={},
        defaults={},
        iterators=(),
        of_frames=tuple(name for name in variables if name.isidentifier() and name != "inner"),
        of_globals=of_globals,
    )


def keys_of(start: dict[str, str], end: dict[str, str], *kept: str) -> Keys:
    seen = looked(Moment.BEGUN, start), looked(Moment.REPORTED, end, kept)
    return Keys(SegmentResult(attached=True, resume_step=0, reports=(), snapshots=seen))


@pytest.mark.parametrize(
    ("name", "first", "saved", "code"),
    [
        ("seen", "0", "3", 'seen = t.state.get("seen", 0)'),
        ("r.seen", "0", "3", 'r.seen = t.state.get("seen", 0)'),
        ("r.parts['a'].seen", "None", "3", "r.parts['a'].seen = t.state.get(\"seen\", None)"),
        ("best", "inf", "0.5", 'best = t.state.get("best", best)'),
        ("m.ema", "#1234", "#5678", 'm.ema = t.state.get("ema", m.ema)'),
        ("M.mode", "Mode.COLD", "Mode.HOT", 'M.mode = Mode[t.state.get("mode", M.mode.name)]'),
    ],
)
def test_the_remedy_is_the_code_to_write(name: str, first: str, saved: str, code: str) -> None:
    keys = keys_of({name: first}, {name: saved})
    said = how_kept(name, {name: saved}, keys, (), {})
    assert said.startswith(f"keep it in t.state: `{code}` before the loop, `t.state[")
    assert said.endswith("` before each report")


@pytest.mark.parametrize(
    ("saved", "code"),
    [
        ("3", 'if "n" in t.state: rate.n = t.state["n"]'),
        ("Mode.HOT", 'if "n" in t.state: rate.n = Mode[t.state["n"]]'),
    ],
)
def test_a_variable_that_the_loop_creates_is_no_default(saved: str, code: str) -> None:
    said = how_kept("rate.n", {"rate.n": saved}, keys_of({}, {"rate.n": saved}), (), {})
    assert said.startswith(f"keep it in t.state: `{code}` before the loop, `t.state[")


def test_two_variables_do_not_share_a_key() -> None:
    changing = {"a.seen": "0", "b.seen": "0"}, {"a.seen": "1", "b.seen": "2"}
    said = [how_kept(name, changing[1], keys_of(*changing), (), {}) for name in changing[0]]
    assert 't.state["a_seen"] = a.seen' in said[0]
    assert 't.state["b_seen"] = b.seen' in said[1]
    taken = keys_of({"a.seen": "0"}, {"a.seen": "1"}, "seen")
    assert 't.state["a_seen"] = a.seen' in how_kept("a.seen", {"a.seen": "1"}, taken, (), {})


def test_a_count_and_a_function_are_kept_by_what_can_be_saved() -> None:
    keys = keys_of({"ids": "count(0)"}, {"ids": "count(4)"})
    assert '`t.state["ids"] += 1` in each step' in how_kept("ids", {"ids": "count(4)"}, keys, (), {})
    keys = keys_of({"rate": "function one of m, line 3"}, {"rate": "function two of m, line 5"})
    assert '`t.state["rate"] = rate.__name__`' in how_kept(
        "rate", {"rate": "function two of m, line 5"}, keys, (), {}
    )


@pytest.mark.parametrize(("first", "told"), [("0", "0"), ("#1234", "...")])
def test_a_variable_of_a_closure_is_replaced_by_the_state(first: str, told: str) -> None:
    keys = keys_of({"inner": first}, {"inner": "3"})
    assert how_kept("inner", {"inner": "3"}, keys, (), {}) == (
        "keep it in t.state in place of `inner`, which belongs to a closure or a generator: "
        f'`t.state.setdefault("inner", {told})` before the loop, and `t.state["inner"]` in the function'
    )


def test_the_default_of_an_argument_is_made_where_it_can_be_tracked(tmp_path: Path) -> None:
    """`generator=jitter(rng)` was not valid: there is no `rng`, and it would call the function."""
    script = tmp_path / "jitter.py"
    script.write_text(
        textwrap.dedent("""
            import random
            def jitter(rng=random.Random(3)):
                return rng.random()
            def train(t):
                t.state.setdefault("w", 4.0)
                for step in t.steps():
                    t.state["w"] -= 0.1 * (t.state["w"] - jitter())
                    t.report(loss=t.state["w"] ** 2)
        """)
    )
    report = run_check(script, steps=3, folder=tmp_path, launch=launch_segment)
    assert [missing.remedy for missing in report.missing] == [
        "make it before the loop, call jitter(..., rng=rng), and add generator=rng to t.track(...)"
    ]


def test_a_global_is_declared_where_the_loop_sets_it() -> None:
    """Without it the assignment makes the name local, and reading it as the default raises UnboundLocalError."""
    seen = (
        looked(Moment.BEGUN, {"SEEN": "0"}, (), ("SEEN",)),
        looked(Moment.REPORTED, {"SEEN": "3"}, (), ("SEEN",)),
    )
    keys = Keys(SegmentResult(attached=True, resume_step=0, reports=(), snapshots=seen))
    said = how_kept("SEEN", {"SEEN": "3"}, keys, (), {})
    assert said.startswith(
        'keep it in t.state: `global SEEN; SEEN = t.state.get("SEEN", 0)` before the loop, '
    )


SCRIPT = """
SEEN = KEPT = 0
def main():
    global KEPT
    local, KEPT = 1, 2
    def loop():
        return local, sys._getframe()
    return loop()[1]
frame = sys._getframe()
"""


def test_globals_are_those_that_the_loop_has_yet_to_declare() -> None:
    script: dict[str, Any] = {"sys": sys}
    exec(SCRIPT, script)
    loop = script["main"]()
    assert globals_of([script["frame"], loop]) & {"SEEN", "KEPT", "local"} == {"SEEN", "KEPT"}
    assert globals_of([script["frame"]]) == set(), "a loop at the top of a script sets them as they are"


def test_a_global_that_the_loop_declares_itself_needs_no_second_declaration() -> None:
    script: dict[str, Any] = {"sys": sys}
    exec("SEEN = 0\ndef main():\n    global SEEN\n    SEEN = 1\n    return sys._getframe()", script)
    assert "SEEN" not in globals_of([script["main"]()])
