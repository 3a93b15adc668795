"""`headrace plan … --plot FILE`: a plan as a picture (SVG) or as a page (HTML).

Both show the stages with their layers and what is recomputed, the memory of each stage against the device, the
schedule over time, and memory over time. `layers` adds the stages to the timeline of `drawing`; `figures` and
`page` draw the same with Plotly, with zoom and tooltips. Plotly is installed with `headrace[report]`.
"""

from pathlib import Path

from headrace.client.missing import require
from headrace.errors import InvalidFieldError, Violation
from headrace_services.planner.plan import Plan
from headrace_services.planner.reporting import writable_folder

ENDINGS = (".svg", ".html")


def drawable(path: Path) -> None:
    """Checks, before anything is computed, that a picture can be drawn into this file.

    Raises InvalidFieldError for an unknown file ending or a folder that cannot be written to, and
    MissingExtraError.
    """
    if path.suffix.lower() not in ENDINGS:
        message = "ends in neither .svg nor .html"
        remedy = "Name FILE.svg for a picture, or FILE.html for a page."
        raise InvalidFieldError([Violation(field="plot", value=str(path), message=message, remedy=remedy)])
    if path.suffix.lower() == ".html":
        require("A page", "report", "plotly")
    writable_folder(path.parent, "plot")


def drawn(plan: Plan, path: Path) -> str:
    """The text of the file, by its ending."""
    if path.suffix.lower() == ".svg":
        from headrace_services.planner.picture.layers import picture_svg

        return picture_svg(plan)
    from headrace_services.planner.picture.page import page_html

    return page_html(plan)
