"""A trial's own output on a terminal and elsewhere."""

import io

import pytest

from headrace.cli.output import Output


class Terminal(io.StringIO):
    """Claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[31mred\x1b[0m\n", None),
        ("50%\r51%\x1b[K\x1b[1A\n\tx\b", None),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),  # the clipboard
        ("\x1b]0;title\x1b\\", "\\x1b]0;title\\x1b\\"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1bP+q\x9d0;x\x9c\x00", "\\x1bP+q\\x9d0;x\\x9c\\x00"),
        ("äöü 你好 \U0001f600\n", None),
    ],
)
def test_a_terminal_gets_colours_and_no_commands(
    said: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    Output(stdout=terminal).raw(said.encode())
    Output(stdout=file).raw(said.encode())
    assert terminal.getvalue() == (said if shown is None else shown)
    assert file.getvalue() == said
