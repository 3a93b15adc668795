"""Command lines with placeholders."""

import pytest

from headrace.spec import CommandLine


@pytest.mark.parametrize(
    ("args", "filled"),
    [
        (("run", "--lr={lr}"), ["run", "--lr=0.001"]),
        (("run", "{lr}", "{lr}-{depth}"), ["run", "0.001", "0.001-3"]),
        (("{trial}", "{seed}"), ["7", "99"]),
        (("{{lr}}", "a{{b"), ["{lr}", "a{b"]),
        (("{{{lr}}}",), ["{0.001}"]),
        (("--flag={flag}", "--{name}"), ["--flag=true", "--a b; rm -rf /"]),
        (("run", "--momentum={momentum}", "last"), ["run", "last"]),
        (("{tiny}",), ["1e-05"]),
        (("",), [""]),
    ],
)
def test_fill(args, filled):
    params = {"lr": 0.001, "depth": 3, "flag": True, "name": "a b; rm -rf /", "tiny": 1e-5}
    assert CommandLine(args=args).fill(params, trial=7, seed=99) == filled


def test_a_value_with_braces_is_not_filled_again():
    assert CommandLine(args=("{a}",)).fill({"a": "{trial}"}, trial=1, seed=2) == ["{trial}"]
