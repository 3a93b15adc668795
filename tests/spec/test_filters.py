"""The grammar of filters: what is read, and what is refused with the part that is wrong."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidFieldError
from headrace.query import Term, moment, number, parse_filter

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
READ = {
    "": [],
    "  \n ": [],
    "state:running": [("state", ":", ("running",), False)],
    "state:running lr>1e-3  val_loss<=0.1": [
        ("state", ":", ("running",), False),
        ("lr", ">", ("1e-3",), False),
        ("val_loss", "<=", ("0.1",), False),
    ],
    "-tag:old": [("tag", ":", ("old",), True)],
    "tag!=old": [("tag", ":", ("old",), True)],
    'note:"a\\\nb"': [("note", ":", ("a\nb",), False)],
    "-tag!=old": [("tag", ":", ("old",), False)],
    "state=failed,cancelled": [("state", ":", ("failed", "cancelled"), False)],
    'note~"too slow, \\"again\\""': [("note", "~", ('too slow, "again"',), False)],
    '"odd key":x,"y z"': [("odd key", ":", ("x", "y z"), False)],
    "metric.train/acc@5>=0": [("metric.train/acc@5", ">=", ("0",), False)],
    "x>-1": [("x", ">", ("-1",), False)],
    "tag:a:b": [("tag", ":", ("a:b",), False)],
}
REFUSED = {
    "running": "'running'",
    "state:": "'state:'",
    ":running": "':running'",
    "lr > 1": "'lr'",
    "lr==0.1": "'lr==0.1'",
    "lr=>1 x:1": "'lr=>1'",
    "lr<>1": "'lr<>1'",
    "a:1 -": "'-'",
    'note~"open': "'\"open'",
    'note~"a"b': "'note~\"a\"b'",
    "tag:a,,b": "'tag:a,'",
    ",": "','",
    "x:" + ",".join("1" * 65): "'x'",
    "x:1 " * 33: "'x:1'",
}


@pytest.mark.parametrize("text", READ)
def test_a_filter_is_read(text: str) -> None:
    found = [(term.key, term.operator, term.values, term.negated) for term in parse_filter(text)]
    assert found == READ[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_filter_is_refused_with_the_wrong_part(text: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        parse_filter(text)
    [violation] = caught.value.violations
    assert (violation.field, violation.value) == ("filter", REFUSED[text])
    assert violation.message
    assert violation.remedy


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        terms = parse_filter(text)
    except InvalidFieldError:
        return
    assert all(term.key and term.values for term in terms)


@given(st.lists(st.tuples(st.text(min_size=1), st.lists(st.text(), min_size=1, max_size=3)), max_size=4))
def test_quoted_keys_and_values_come_back(given_terms: list[tuple[str, list[str]]]) -> None:
    def quoted(word: str) -> str:
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = " ".join(f"{quoted(key)}:{','.join(map(quoted, values))}" for key, values in given_terms)
    assert [(term.key, list(term.values)) for term in parse_filter(text)] == given_terms


def term(text: str) -> Term:
    return parse_filter(text)[0]


def test_times_are_dates_or_ages() -> None:
    read = {
        "2026-11-30": datetime(2026, 11, 30, tzinfo=UTC),
        "2026-11-30T10:30": datetime(2026, 11, 30, 10, 30, tzinfo=UTC),
        "2026-11-30T10:30+02:00": datetime(2026, 11, 30, 8, 30, tzinfo=UTC),
        "12h": datetime(2026, 11, 30, tzinfo=UTC),
        "2d": datetime(2026, 11, 28, 12, tzinfo=UTC),
        "9999y": datetime.min.replace(tzinfo=UTC),
    }
    for value, expected in read.items():
        assert moment(term(f"created>{value}"), value, NOW) == expected
    for value in ("yesterday", "forever", "2026-13-01", "-1d", "999999999y"):
        with pytest.raises(InvalidFieldError, match="is not a time"):
            moment(term(f"created>{value}"), value, NOW)


def test_only_an_equality_accepts_nan() -> None:
    assert number(term("x:nan"), "nan") != number(term("x:nan"), "nan")
    assert number(term("x>-inf"), "-inf") == float("-inf")
    with pytest.raises(InvalidFieldError, match="orders by NaN"):
        number(term("x>nan"), "nan")
    with pytest.raises(InvalidFieldError, match="not a number"):
        number(term("x>big"), "big")
    with pytest.raises(InvalidFieldError, match="not a number"):
        number(term("x>1_0"), "1_0")
