"""A study as one self-contained HTML page."""

from headrace.report.page import build_report

__all__ = ["build_report"]
