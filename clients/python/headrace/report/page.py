"""placeholder"""


def build_report(_study: object) -> str:
    return "<html></html>"
