"""The site of the documentation: `sphinx-build -c docs . OUTPUT`, from the root of the checkout.

The sources are README, ARCHITECTURE and their like beside `docs/`, so that a link means the same on
a forge and on the site. Nothing is fetched: no inventories of other projects, fonts or scripts.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent
_PROJECT = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
author = _PROJECT["authors"][0]["name"]
version = release = _PROJECT["version"]

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/*.md", "*.md"]
exclude_patterns = ["docs/_site", ".*", "**/__pycache__"]

# Headings get anchors as forges make them, four levels deep; `{toctree}` is a fence with colons.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_search_scorer = "docs/_static/search_scorer.js"  # from the root, where the sources lie
html_extra_path = ["_site"]  # the front page of the site leads to docs/index.html
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
