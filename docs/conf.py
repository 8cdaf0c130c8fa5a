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

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"qworker {version}"
myst_heading_anchors = 3
# Pages link to files beside docs/ too (examples, CONTRIBUTING), which are not part of the built pages.
suppress_warnings = ["myst.xref_missing"]
# Copied are the commands, without their prompts and what they print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

CONTENTS = {
    "Start here": ("tutorial", "tutorial-django"),
    "How to": ("how-to/*",),
    "Reference": ("reference/*",),
    "Explanation": ("explanation/*",),
}
"""The captions of the sidebar, and the pages below each."""


def add_contents(app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        for caption, pages in CONTENTS.items():
            listed = "\n".join(pages)
            source[0] += (
                f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{listed}\n```\n"
            )


def setup(app: Any) -> None:
    app.connect("source-read", add_contents)
