"""Pages that the site alone has: decisions, examples of what is computed, all figures of the benchmark.

They are written next to the other pages before these are read, and git ignores them.
"""

import sys
from pathlib import Path

import decisions_page
import examples_page
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
DATA, DECISIONS = "decisions.toml", "decisions.md"
EXAMPLES = Path("tests", "formats", "examples.toml")


def write_pages(app: Sphinx) -> None:
    """Write the pages; those that have not changed keep their time, so they are not read again."""
    sys.path.insert(0, str(ROOT))  # a checkout has the benchmark next to the package
    from bench import pictures, report, results, scaling_page

    texts = report.figures(results.stored())
    texts[Path("docs", DECISIONS)] = decisions_page.page(ROOT / "docs" / DATA)
    texts[Path("docs", "reference", "examples.md")] = examples_page.page(ROOT / EXAMPLES)
    list(pictures.write_texts(ROOT, texts))
    scaling_page.write(ROOT)


def lead_to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to data lead to the pages of it, and Performance to all figures."""
    from bench import report, results

    source[0] = source[0].replace(f"{DATA})", f"{DECISIONS})")
    source[0] = source[0].replace(f"../../{EXAMPLES.as_posix()})", "examples.md)")
    if docname == report.PAGE.stem:
        source[0] += report.links(results.stored())


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", lead_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
