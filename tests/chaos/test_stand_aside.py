"""The fleet lowers its own priority, and restores it afterwards."""

from pathlib import Path

from stand_aside import LOW, standing_aside


def test_the_session_s_priority_is_lowered_within_the_block_alone(tmp_path: Path) -> None:
    group = tmp_path / "autogroup"
    group.write_text("/autogroup-7 nice 3\n")
    with standing_aside(group) as aside:
        assert aside
        assert group.read_text() == f"{LOW}\n"
    assert group.read_text() == "3\n"


def test_where_the_kernel_has_no_groups_nothing_is_lowered(tmp_path: Path) -> None:
    with standing_aside(tmp_path / "none") as aside:
        assert not aside
