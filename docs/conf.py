"""Sphinx: the pages as HTML. ``make docs`` runs it.

The pages are plain Markdown that any code host shows; what only Sphinx needs, the table of contents, is added
here.
"""

import re
from collections import _tuplegetter
from inspect import isfunction
from typing import Any

import django
from django.conf import settings

import qworker
from qworker import __version__

# The page about the Django package is made from its docstrings, and models are loaded within a project.
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "qworker.django",
    ],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "not-made.sqlite3"}
    },
    SECRET_KEY="of nothing",
)
django.setup()

project = "qworker"
author = "qworker contributors"
copyright = "2026, qworker contributors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = f"qworker {version}"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
default_role = "code"
# Pages link to files beside docs/ too (examples, CONTRIBUTING), which are not part of the built pages; and an
# annotation that says Task is no link, since there are several.
suppress_warnings = ["myst.xref_missing", "ref.python"]
# Copied are the commands, without their prompts and what they print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

LEADING = {"index", "reference/api"}
"""The pages that lead to others, which stand below them in the sidebar, in the order of their links."""


def add_contents(app: Any, page: str, source: list[str]) -> None:
    """Add what only Sphinx needs: the sidebar's captions, which are lines in bold, and what is below each."""
    if page not in LEADING:
        return
    trees: list[str] = []
    for caption, linked in re.findall(
        r"^\*\*(.+)\*\*$|^- \[[^\]]+\]\((.+?)\.md\)", source[0], re.MULTILINE
    ):
        if caption or not trees:
            named = f":caption: {caption}\n" if caption else ""
            trees.append(f"\n```{{toctree}}\n:hidden:\n{named}\n")
        trees[-1] += f"{linked}\n" if linked else ""
    source[0] += "".join(f"{tree}```\n" for tree in trees)


def leave_out_fields(
    app: Any, what: str, name: str, found: Any, skip: bool, options: Any
) -> bool | None:
    """The docstring of a tuple explains its fields."""
    return True if isinstance(found, _tuplegetter) else None


def leave_out_modules(
    app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """The docstring of a module is for whoever changes it."""
    if what == "module":
        lines.clear()


def tell_where_classes_are_written() -> None:
    """Classes of the front door say that they are from there; what is to be found in their source, as the
    order of their methods, is found where they are written."""
    for kind in (getattr(qworker, name) for name in qworker.__all__):
        if isinstance(kind, type) and kind.__module__ == qworker.__name__:
            methods = (each for each in vars(kind).values() if isfunction(each))
            own = (
                each.__module__
                for each in methods
                if each.__qualname__.startswith(f"{kind.__qualname__}.")
            )
            kind.__module__ = next(own, kind.__module__)


def setup(app: Any) -> None:
    tell_where_classes_are_written()
    app.connect("autodoc-process-docstring", leave_out_modules)
    app.connect("autodoc-skip-member", leave_out_fields)
    app.connect("source-read", add_contents)
