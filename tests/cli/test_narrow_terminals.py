"""On terminals of 80 and 60 columns nothing is cut off: lines wrap, and words are not split."""

import re

import pytest
from fake_study_service import FakeStudyService
from terminal import Terminal, terminal

WIDTHS = pytest.mark.parametrize("columns", [60, 80])


def screen_of(screen: Terminal) -> list[str]:
    """The lines that were shown, without colours and other escapes."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.seen)
    return [line.rstrip() for line in plain.replace("\r", "\n").split("\n") if line.strip()]


@pytest.mark.cases(1)
@WIDTHS
def test_the_live_view_shows_decisions_whole(fake: FakeStudyService, study_file, columns: int) -> None:  # type: ignore[no-untyped-def]
    fake.batch, fake.watch_delay_s = 40, 2.0
    with terminal("run", str(study_file), columns=columns, lines=24) as screen:
        screen.read_until("of run-all")
        screen.read_until(r"paused: rank")
        screen.read_until("Ctrl-C detaches")
        lines = screen_of(screen)
    lines = lines[next(place for place, line in enumerate(lines) if line.startswith("fresh  ")) :]
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    words = " ".join(" ".join(lines).split())
    assert re.search(
        r"trial \d+ paused: rank \d+ of \d+ at step 1; the best \d+ are promoted, so it waits", words
    )


def test_a_path_of_the_summary_can_be_copied_whole(fake: FakeStudyService) -> None:
    best = fake.scripts["studies/digits"].final.study.status.best
    uri = f"file:///{'folder/' * 20}step-27"
    best.checkpoint.uri, best.checkpoint.step = uri, 27
    try:
        with terminal("show", "digits", columns=80) as screen:
            screen.read_to_end()
    finally:
        best.ClearField("checkpoint")
    assert f"{uri} (step 27)" in screen.seen


@pytest.mark.cases(2)
@WIDTHS
@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (
            ["trials", "digits", "-n", "3"],
            ["optimizer=", "momentum=", "completed", "RUNG AT STEP", "0.36774"],
        ),
        (["trials", "digits", "--state", "failed"], ["ValueError: loss is nan <b>[bold]"]),
        (["studies"], ["completed", "155/756", "val_loss", "0.36774"]),
        (["show", "digits"], ["RUNG AT STEP", "RUNNING", "val_loss 0.36774 at step 27"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_tables_are_neither_cut_nor_torn(
    fake: FakeStudyService, columns: int, command: list[str], whole: list[str]
) -> None:
    with terminal(*command, columns=columns) as screen:
        screen.read_to_end()
        lines = screen_of(screen)
    assert max(map(len, lines)) <= columns
    assert "…" not in screen.seen
    for text in whole:
        assert any(text in line for line in lines), f"{text!r} is torn or missing in {lines}"
