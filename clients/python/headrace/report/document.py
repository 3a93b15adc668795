"""One self-contained HTML file: a header, sections with figures, and Plotly's JavaScript, included once.

Headers and bodies are HTML, so their authors escape the contents; titles, labels and notes are escaped here.
"""

from collections.abc import Iterable
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from headrace.report import style

CSS = f"""
:root {{ color-scheme: light; }}
body {{ font-family: {style.FONT}; color: {style.INK}; background: #f4f6f8; margin: 0; line-height: 1.45; }}
main {{ max-width: 1240px; margin: 0 auto; padding: 28px 24px 60px; }}
h1 {{ font-size: 28px; margin: 0 0 2px; overflow-wrap: anywhere; }}
h2 {{ font-size: 19px; margin: 0 0 4px; }}
.lead, .note {{ color: {style.MUTED}; margin: 0 0 14px; }}
.note {{ font-size: 14px; }}
section {{ background: white; border: 1px solid #dfe4e9; border-radius: 10px; padding: 18px 20px; margin-top: 18px; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 14px; margin-top: 18px; }}
.card {{ background: white; border: 1px solid #dfe4e9; border-radius: 10px; padding: 14px 16px; }}
.card .label {{ color: {style.MUTED}; font-size: 13px; }}
.card .figure {{ font-size: 25px; font-weight: 650; overflow-wrap: anywhere; }}
.card .more {{ font-size: 13px; color: {style.MUTED}; overflow-wrap: anywhere; }}
.best .figure {{ color: {style.BEST}; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 12.5px; width: 100%; }}
th, td {{ text-align: left; padding: 5px 8px; border-bottom: 1px solid #e6eaee; white-space: nowrap; }}
td.why {{ white-space: normal; min-width: 200px; }}
th {{ position: sticky; top: 0; background: white; cursor: pointer; user-select: none; }}
th[aria-sort=ascending]::after {{ content: " ▲"; }}
th[aria-sort=descending]::after {{ content: " ▼"; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
tr.best td {{ background: #fdf0e6; font-weight: 600; }}
tr.baseline td {{ background: #f1f3f5; }}
.wide {{ grid-column: 1 / -1; }}
dl {{ display: flex; flex-wrap: wrap; gap: 4px 32px; margin: 4px 0 0; }}
dt {{ color: {style.MUTED}; font-size: 13px; }}
dd {{ margin: 0; font-weight: 650; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
"""


def page(title: str, header: str, sections: Iterable[str], *, script: str = "") -> str:
    """The file."""
    ending = f"<script>{script}</script>\n" if script else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · Headrace</title>\n"
        f"<style>{CSS}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n"
        f"{header}\n{''.join(sections)}\n</main>\n{ending}</body>\n</html>\n"
    )


def card(label: str, figure: str, more: str, kind: str = "") -> str:
    """A figure in words: its label, value and note."""
    return (
        f'<div class="card {kind}"><div class="label">{escape(label)}</div>'
        f'<div class="figure">{escape(figure)}</div><div class="more">{escape(more)}</div></div>'
    )


def section(title: str, note: str, body: str) -> str:
    """A heading, a sentence below it, and a body."""
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{body}</section>'


def figure(drawn: go.Figure, name: str, *, zoom: bool = True) -> str:
    """A Plotly figure, as a part of a page."""
    # The buttons are listed, as Plotly's default list has one that sends the figure to a server.
    buttons = [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]] if zoom else [["toImage"]]
    config = {"displaylogo": False, "responsive": True, "modeBarButtons": buttons}
    html: str = drawn.to_html(full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=config)
    return html
