"""Sphinx: the pages as HTML. ``make docs`` runs it.

The pages are plain Markdown that any code host shows; what only Sphinx needs, the table of contents, is added
here.
"""

from typing import Any

from qworker import __version__

project = "qworker"
author = "qworker contributors"
copyright = "2026, qworker contributors"
version = release = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"qworker {version}"
myst_heading_anchors = 3
# Pages link to files beside docs/ too (examples, CONTRIBUTING), which are not part of the built pages.
suppress_warnings = ["myst.xref_missing"]

CONTENTS = """
```{toctree}
:hidden:
:glob:

tutorial
how-to/*
reference/*
explanation/*
```
"""


def add_contents(app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        source[0] += CONTENTS


def setup(app: Any) -> None:
    app.connect("source-read", add_contents)
