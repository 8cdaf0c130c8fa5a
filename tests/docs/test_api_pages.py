"""Every public name is documented on an API page and has a docstring."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.api_pages import REPOSITORY, Shown, shown


def test_every_public_name_is_documented_and_has_a_docstring() -> None:
    """In a separate process, with its own Django project."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.api_pages"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_api_page_directives_are_parsed() -> None:
    """If parsing found nothing, there would be no problems to report."""
    found = {(each.kind, each.path): each for each in shown()}
    task = found["class", "qworker.Task"]
    assert (task.page, "origin" in task.left_out) == ("tasks.md", True)
    assert {"delay", "request", "on_failure"} <= task.members().keys()
    assert not {"origin", "_undocumented"} & task.members().keys()
    assert ("module", "qworker.errors") in found
    assert Shown("a.md", "class", "qworker.Task", "").members() == {}


def test_no_name_is_documented_twice() -> None:
    paths = [each.path for each in shown()]
    assert len(set(paths)) == len(paths)
