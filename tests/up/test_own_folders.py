"""Folders that another user has planted in /tmp are no homes: `up`, its authority and workers refuse them."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.home import check_own
from headrace_services.identity import authority
from headrace_services.identity.head import ensured
from headrace_services.up.home import hold
from headrace_worker.home import Home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
STRANGER = 4321
"""A user without a name."""


@pytest.fixture
def everybodys(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def of_stranger(folder: Path) -> Path:
    folder.mkdir(mode=0o755)
    os.chown(folder, STRANGER, STRANGER)
    return folder


def hold_up(home: Path) -> None:
    with hold(home):
        pass


def hold_worker(home: Path) -> None:
    with Home(home):
        pass


@pytest.mark.parametrize("held", [hold_up, hold_worker])
def test_a_home_that_somebody_else_planted_is_refused_and_left_alone(
    everybodys: Path, held: Callable[[Path], None]
) -> None:
    planted = of_stranger(everybodys / "root-headrace")
    with pytest.raises(HeadraceError, match="belongs to another user") as caught:
        held(planted)
    assert "--home" in caught.value.remedy
    assert list(planted.iterdir()) == []


@pytest.mark.parametrize("held", [hold_up, hold_worker])
def test_a_home_below_a_planted_folder_is_refused(everybodys: Path, held: Callable[[Path], None]) -> None:
    """Its owner could put another one in its place."""
    planted = of_stranger(everybodys / "headrace-0")
    with pytest.raises(HeadraceError, match=f"another user: {planted}"):
        held(planted / "slurm-7-0")


@pytest.mark.parametrize("held", [hold_up, hold_worker])
def test_a_home_that_everybody_may_write_is_refused(everybodys: Path, held: Callable[[Path], None]) -> None:
    with pytest.raises(HeadraceError, match="every user"):
        held(everybodys)


@pytest.mark.parametrize("held", [hold_up, hold_worker])
def test_a_home_of_ones_own_may_be_anywhere(
    everybodys: Path, tmp_path: Path, held: Callable[[Path], None]
) -> None:
    held(everybodys / "mine" / "home")
    shared = of_stranger(tmp_path / "project")  # of a group's head, as on shared disks
    held(shared / "home")
    (tmp_path / "link").symlink_to(shared / "home")
    held(tmp_path / "link")


def test_a_user_who_is_not_root_trusts_roots_folders(everybodys: Path) -> None:
    (everybodys / "made-by-root").mkdir()
    check_own(everybodys / "made-by-root", "the home", remedy="", user=STRANGER)


def test_a_planted_authority_is_refused(tmp_path: Path) -> None:
    authority.make(tmp_path / "ca", ["localhost"], now=datetime.now(UTC))
    os.chown(tmp_path / "ca", STRANGER, STRANGER)
    with pytest.raises(HeadraceError, match="the certificate authority, belongs to another user") as caught:
        ensured(tmp_path / "ca", ["localhost"], now=datetime.now(UTC))
    assert "Move it away" in caught.value.remedy
