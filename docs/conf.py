"""Sphinx configuration: `python -m sphinx -M html docs site -W --keep-going` builds the pages into site/html."""

import os
import sys
from pathlib import Path

import fastq

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import inventories  # noqa: E402

os.environ["IPYTHONDIR"] = str(HERE / "_ipython")  # kernels draw pictures that follow the theme of the page

project = "fastq"
copyright = "the authors of fastq"
version = release = fastq.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "bit_layouts",
    "pages",
    "made_pages",
]
templates_path = ["_templates"]
exclude_patterns = ["_ipython", "reference/api/*.rst.txt"]
nitpicky = True
default_role = "autolink"  # in docstrings: a link if the name is one of ours, else as written

autodoc_typehints = "none"  # the sections of docstrings have them
autosummary_generate = True
numpydoc_show_class_members = False  # the template of classes lists them
intersphinx_mapping = inventories.mapping(HERE.parent / "site" / "inventories")


myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "fastq"
html_static_path = ["_static"]
html_css_files = ["fastq.css"]
html_js_files = ["rounding.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
if url := os.environ.get("DOCS_URL"):  # of the pages of all versions, which docs/versions.py writes
    switcher = {"json_url": f"{url.rstrip('/')}/versions.json", "version_match": os.environ["DOCS_VERSION"]}
    html_theme_options |= {"switcher": switcher, "check_switcher": False}
    html_theme_options["navbar_end"] = ["version-switcher", "theme-switcher", "navbar-icon-links"]
html_sidebars = {
    "index": [],
    "choose": [],
    "performance*": [],
    "reliability": [],
    "design": [],
    "contributing": [],
    "changelog": [],
}
