"""Texts that are no study file, or are made to harm their reader: each fault has its place, and takes little
memory."""

import re
import resource

import pytest
from study_file_samples import MINIMAL, added, minimal

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{f'*a{k - 1},' * 10}]\n" for k in range(1, 10))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 2000))
NO_YAML = ".*is not valid YAML"
TEXTS = {
    "a list never closed": ("name: [a\nb: 3\n", f"line 2, column 2{NO_YAML}"),
    "a tab": ("name: a\n\tb: 3\n", f"line 2, column 1{NO_YAML}"),
    "two colons": ("a: b: c\n", f"line 1, column 5{NO_YAML}"),
    "an unknown alias": ("a: *nowhere\n", f"line 1, column 4{NO_YAML}"),
    "a quote never closed": ("a: 'never closed\n", f"line 2, column 1{NO_YAML}"),
    "a long quote never closed": ("a: '" + "x" * 900_000, f"line 1, {NO_YAML}"),
    "two documents": (f"{MINIMAL}---\n{MINIMAL}", f"line 6, column 1{NO_YAML}"),
    "another version": (f"%YAML 9.9\n---\n{MINIMAL}", f"line 1, column 1{NO_YAML}"),
    "an escape of no character": ('a: "\\U00110000"\n', NO_YAML),
    "a control character": ("a: \x07", "line 1: has the control character"),
    "a control character, escaped": (minimal("name: small", 'name: "a\\0b"'), "name: "),
    "half a character": (minimal("name: small", 'name: "\\uD800"'), "name: "),
    "a name of a megabyte": (minimal("name: small", "name: " + "s" * 900_000), "name: "),
    "a billion laughs": (LAUGHS, "line .*its aliases repeat more than 100000 values"),
    "an alias of itself": ("a: &x [*x]\n", "line 1, column 4: .*repeat themselves without end"),
    "aliases 2,000 deep": (CHAIN, "line .*aliases are nested deeper than 50 levels"),
    "100,000 brackets": ("a: " + "[" * 100_000, "line 1, .*nested deeper than 50 levels"),
    "100,000 braces": ("a: " + "{a: " * 100_000, "line 1, .*nested deeper than 50 levels"),
    "100,000 dashes": ("a: \n" + "- " * 100_000, "line 2, .*nested deeper than 50 levels"),
    "100,000 question marks": ("? " * 100_000, "line 1, .*nested deeper than 50 levels"),
    "a million values": ("a: [" + "x," * 500_000, "line 1, .*more than 100000 values"),
    "a tag of its own": (added("retries: !mine 3"), "retries: has the tag !mine"),
    "5,000 digits": (added(f"retries: {'9' * 5000}"), "retries: "),
    "5,000 hexadecimal digits": (added(f"retries: 0x{'f' * 5000}"), "retries: "),
    "an exponent of 5,000 digits": (added(f"seed: 1e{'9' * 5000}"), "seed: "),
    **{
        repr(text): (text, "is not a mapping") for text in ("", "# nothing\n", "- 1\n", "just words\n", "3\n")
    },
}


@pytest.mark.parametrize(("text", "says"), TEXTS.values(), ids=TEXTS)
def test_it_is_refused_with_its_place(faults, text, says):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = faults(text).values()
    assert re.search(says, str(found), re.DOTALL)
    assert len(str(found)) < 1000, "a hostile value is cut"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
