"""What pages need beside their text: links in docstrings, pages that only one other page links to."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_FILE = re.compile(r"(?<![`/\w])docs/([\w/-]+)\.md")


def link_pages(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace ``docs/page.md`` in a docstring by a link."""
    lines[:] = [_FILE.sub(r":doc:`/\1`", line) for line in lines]


def leave_to_page(app: Sphinx, doctree: nodes.document) -> None:
    """Take the generated pages of machines, to which performance.md leads, as pages of no table of contents."""
    if app.env.docname.startswith("performance-"):
        app.env.metadata[app.env.docname]["orphan"] = True


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("doctree-read", leave_to_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
