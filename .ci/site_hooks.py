"""The hooks that mkdocs calls while it builds the site (`.ci/mkdocs.yml`)."""

import re
import sys
import zlib
from pathlib import Path
from typing import Any, Final

import mermaidx
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path

import documents
import site_pages

FETCHED: Final = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?(?P<url>(?:https?:)?//[^\"> ]+)"
)


def on_config(config: Any) -> Any:
    """The navigation; anchors as GitHub forms them; diagrams as pictures, which need no script from another
    host.
    """
    config.nav = site_pages.navigation()
    config.mdx_configs["toc"]["slugify"] = lambda heading, _separator: documents.slug(heading)
    fence = {"name": "mermaid", "class": "mermaid", "format": diagram}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, pictures and styles outside docs/."""
    for source, uri in site_pages.PROJECT.items():
        files.append(File.generated(config, uri, content=site_pages.page(source)))
    style = Path(__file__).with_name("site.css")
    files.append(File.generated(config, style.name, abs_src_path=str(style)))
    for picture in sorted(site_pages.pictures()):
        files.append(File.generated(config, str(site_pages.place(picture)), abs_src_path=str(picture)))
    return files


def on_page_read_source(page: Any, **_: Any) -> str | None:
    """The text of a page in docs/."""
    source = page.file.abs_src_path
    return None if source is None else site_pages.page(Path(source))


def on_post_build(config: Any) -> None:
    """Fails if a page of the site fetches something from another host."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if found := FETCHED.search(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.name} fetches {found['url']}: the site must work without a network")


def diagram(source: str, *_: Any, **__: Any) -> str:
    """A Mermaid diagram as SVG."""
    svg = str(mermaidx.render(source).svg())
    return f'<div class="diagram">{svg.replace("my-svg", f"diagram-{zlib.crc32(source.encode()):08x}")}</div>'
