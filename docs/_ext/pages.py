"""Additions to the text of pages: links in docstrings, formulas as MathML, pages that one other page leads to."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

_FILE = re.compile(r"(?<![`/\w])docs/([\w/-]+)\.md")


def link_pages(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace ``docs/page.md`` in a docstring by a link."""
    lines[:] = [_FILE.sub(r":doc:`/\1`", line) for line in lines]


def leave_to_page(app: Sphinx, doctree: nodes.document) -> None:
    """Take the generated pages of machines, to which performance.md leads, as pages of no table of contents."""
    if app.env.docname.startswith("performance-"):
        app.env.metadata[app.env.docname]["orphan"] = True


def write_drawings(app: Sphinx, doctree: nodes.document) -> None:
    """Put drawings of docs/drawings.py into the page as elements, which have the colours of its theme."""
    for image in list(doctree.findall(nodes.image)):
        drawing = Path(app.srcdir, image["uri"])
        if drawing.suffix == ".svg" and drawing.parent.name == "_static":
            image.replace_self(nodes.raw("", drawing.read_text(encoding="utf-8"), format="html"))


def name_clauses(app: Sphinx, doctree: nodes.document) -> None:
    """Let links lead to clauses of the contract: contract.html#c7-3."""
    for number in doctree.findall(nodes.strong):
        if re.fullmatch(r"C\d+\.\d+", number.astext()):
            number["ids"].append(number.astext().lower().replace(".", "-"))


def formula(self: Any, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw by themselves, without a script from elsewhere."""
    block = isinstance(node, nodes.math_block)
    written = tex2mathml(node.astext(), as_block=block)
    self.body.append(f'<div class="formula">{written}</div>' if block else written)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("doctree-read", leave_to_page)
    app.connect("doctree-read", write_drawings)
    app.connect("doctree-read", name_clauses)
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
