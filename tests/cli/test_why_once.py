"""An error is told in full once; where it comes again, its own line is enough."""

from headrace.cli.why import ERROR_WIDTH, _once

LONG = f"ValueError: {'x' * 300}\nmore of it"


def test_an_error_is_told_in_full_once() -> None:
    told: set[str] = set()
    assert _once(LONG, told) == LONG
    again = _once(f"{LONG} (attempt 2 of 2)", told)
    assert again.startswith("ValueError: xxx")
    assert again.endswith("x… (attempt 2 of 2)")
    assert len(again) == ERROR_WIDTH + len(" (attempt 2 of 2)")
    assert _once("OSError: other", told) == "OSError: other"
