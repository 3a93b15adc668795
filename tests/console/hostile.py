"""Names and texts that try to be markup, to run, to turn the writing direction, or to break the layout."""

MARKUP = '<img src=x onerror="alert(1)"><script>alert(2)</script></title><svg onload=alert(3)>'
QUOTES = '"\' onmouseover="alert(4)" x="{{ 7*7 }}${alert(5)}`'
RTL = "\u202e\u2067gnp.exe\u200f\u0000\u061c".replace("\u0000", "")
LONG = "W" * 10_000
LINK = "javascript:alert(6)"
ALL = f"{MARKUP} {QUOTES} {RTL} {LINK} {LONG}"
METRICS = ("constructor", "__proto__", "hasOwnProperty", "m" * 127)
PARAMS = ("__proto__", "toString", "p" * 127)
VALUES = (MARKUP, QUOTES, RTL, LONG[:500], "constructor")
