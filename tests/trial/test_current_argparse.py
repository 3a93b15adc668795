"""`trial.current()` in a script with a command line of its own, started by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

PARSER = "parser = argparse.ArgumentParser()\nparser.add_argument('--data')\n"
OPENED = "t = trial.current(defaults={'lr': 0.5}, steps=3)\n"
SHOWN = "print(t['lr'], args.data)\n"
HEAD = "import argparse\nfrom headrace import trial\n"


def run(
    tmp_path: Path, *parts: str, options: str = "--lr 0.1 --data digits"
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(HEAD + "".join(parts))
    return subprocess.run(
        [sys.executable, str(script), *options.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


@pytest.mark.parametrize("first", ["the parser", "the trial"])
def test_each_reads_its_own_options_in_either_order(tmp_path: Path, first: str) -> None:
    parsed = PARSER + "args, _ = parser.parse_known_args()\n"
    ran = run(tmp_path, *((parsed, OPENED) if first == "the parser" else (OPENED, parsed)), SHOWN)
    assert (ran.stdout, ran.returncode) == ("0.1 digits\n", 0)
    assert "left to the script: --data digits" in ran.stderr


def test_what_the_parser_leaves_is_the_trials_and_a_mistyped_option_an_error(tmp_path: Path) -> None:
    parsed = PARSER + "args, rest = parser.parse_known_args()\n"
    opened = OPENED.replace("steps=3", "steps=3, argv=rest")
    assert run(tmp_path, parsed, opened, SHOWN).stdout == "0.1 digits\n"
    wrong = run(tmp_path, parsed, opened, SHOWN, options="--lrr 0.1 --data digits")
    assert wrong.returncode == 2
    assert "unrecognized arguments: --lrr 0.1" in wrong.stderr
