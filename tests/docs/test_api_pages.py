"""Every public name stands on a page of the programming interface, and says what it is."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.api_pages import REPOSITORY, Shown, shown


def test_every_public_name_stands_on_a_page_and_has_a_docstring() -> None:
    """In a process of its own, which has a Django project of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.api_pages"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_the_pages_are_read() -> None:
    """One that is read as empty would have no faults."""
    found = {(each.kind, each.path): each for each in shown()}
    task = found["class", "qworker.Task"]
    assert (task.page, "origin" in task.left_out) == ("tasks.md", True)
    assert {"delay", "request", "on_failure"} <= task.members().keys()
    assert not {"origin", "_undocumented"} & task.members().keys()
    assert ("module", "qworker.errors") in found
    assert Shown("a.md", "class", "qworker.Task", "").members() == {}


def test_no_name_is_shown_twice() -> None:
    paths = [each.path for each in shown()]
    assert len(set(paths)) == len(paths)
