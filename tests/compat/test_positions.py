"""Positional parameters compared with the installed originals: Celery, django-q2 and uwsgidecorators. A
position that ours accepts is the same argument there."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")

from celery import canvas, schedules  # noqa: E402
from celery import result as results  # noqa: E402
from celery.app.control import Control as CeleryControl  # noqa: E402

import qworker  # noqa: E402
from qworker import beat  # noqa: E402
from qworker.spooler import decorators  # noqa: E402
from qworker.tasks.eager import EagerResult  # noqa: E402
from tests.support.stores import make_app  # noqa: E402

pytestmark = pytest.mark.compat

CONNECTION = "kombu's hostname may be a URL, and is the only one that is taken here"
OTHER_NAMES: dict[str, tuple[str, str, str]] = {
    "add_defaults": ("values", "fun", "a mapping, or what returns one"),
    "broker_connection": ("url", "hostname", CONNECTION),
    "connection": ("url", "hostname", CONNECTION),
    "connection_or_acquire": ("given", "connection", "the same"),
    "default_connection": ("given", "connection", "the same"),
    "from_dict": ("fields", "d", "the dict of a signature"),
    "link": ("callback", "sig", "a signature"),
    "link_error": ("errback", "sig", "a signature"),
    "maybe_signature": ("value", "d", "a signature, or the dict of one"),
    "signature": ("task", "varies", "a task, its name, or the dict of a signature"),
    "subtask": ("task", "varies", "a task, its name, or the dict of a signature"),
}
"""By the last part of a name: the parameter here, the one at its position there, and why they are
equivalent."""


def positions(function: Callable[..., Any]) -> list[str]:
    """The positional parameters of *function*, without self."""
    every = inspect.signature(function).parameters.values()
    return [each.name for each in every if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def celerys() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Every callable that both have, with its name as in the guide."""
    app, _, _ = make_app()
    theirs = celery.Celery("proj", set_as_current=False)

    def add(x: int, y: int) -> int:
        return x + y

    task = app.task(name="add")(add)
    theirs.task(name="add", shared=False)(
        add
    )  # a shared task would belong to every later app of this process
    theirs.finalize()
    their_task = theirs.tasks["add"]
    yield "crontab", schedules.crontab, beat.crontab
    yield "schedule", schedules.schedule, beat.schedule
    yield "solar", schedules.solar, beat.solar
    for name in ("chain", "group", "chord", "xmap", "xstarmap", "chunks", "signature"):
        yield name, getattr(canvas, name), getattr(qworker, name)
    for name in ("maybe_signature", "subtask"):
        yield name, getattr(canvas, name), getattr(qworker, name)
    for kind, mine in (
        (results.AsyncResult, qworker.AsyncResult),
        (results.GroupResult, qworker.GroupResult),
        (results.ResultSet, qworker.ResultSet),
        (results.EagerResult, EagerResult),
        (canvas.Signature, qworker.Signature),
    ):
        yield kind.__name__, kind, mine
    pairs: dict[str, tuple[Any, Any]] = {
        "app": (theirs, app),
        "task": (their_task, task),
        "AsyncResult": (theirs.AsyncResult("a"), app.AsyncResult("a")),
        "GroupResult": (
            results.GroupResult("g", [theirs.AsyncResult("a")], app=theirs),
            app.GroupResult("g", [app.AsyncResult("a")]),
        ),
        "ResultSet": (theirs.ResultSet([]), app.ResultSet([])),
        "EagerResult": (results.EagerResult("e", 1, "SUCCESS"), EagerResult("e", 1, "SUCCESS", app=app)),
        "Signature": (their_task.s(1), task.s(1)),
        "group": (canvas.group([their_task.s(1)]), qworker.group([task.s(1)])),
        "chain": (canvas.chain(their_task.s(1), their_task.s(2)), qworker.chain(task.s(1), task.s(2))),
        "chord": (canvas.chord([their_task.s(1)], their_task.s()), qworker.chord([task.s(1)], task.s())),
        "control": (CeleryControl(theirs), app.control),
    }
    for owner, (original, ours) in pairs.items():
        for name in sorted({*dir(type(original))} - {*dir(dict)}):
            if name.startswith("_"):
                continue
            try:
                there, here = getattr(original, name), getattr(ours, name)
            except Exception:  # noqa: BLE001 - names that qworker refuses; see test_celery_names.py
                continue
            if callable(there) and callable(here):
                yield f"{owner}.{name}", there, here


CELERYS = {name: (there, here) for name, there, here in celerys()}


def disagreement(name: str, theirs: list[str], ours: list[str]) -> str:
    """Where a position of *ours* is another parameter than in *theirs*; "" if nowhere. Parameters that
    ours only accepts by keyword raise TypeError, so they cannot be misunderstood."""
    here_there = OTHER_NAMES.get(name.rpartition(".")[2], ("", "", ""))[:2]
    for place, (there, here) in enumerate(zip(theirs, ours, strict=False)):
        if here != there and (here, there) != here_there:
            return f"{name}: position {place} is {here} here, and {there} there"
    return ""


@pytest.mark.parametrize("name", CELERYS)
def test_positional_parameters_of_celery(name: str) -> None:
    there, here = CELERYS[name]
    try:
        theirs, ours = positions(there), positions(here)
    except (TypeError, ValueError):
        return  # a C type or an exception
    assert disagreement(name, theirs, ours) == ""


def test_listed_renamings_exist() -> None:
    assert {name.rpartition(".")[2] for name in CELERYS}.issuperset(OTHER_NAMES)


def written(*paths: Path) -> dict[str, list[str]]:
    """The positional parameters of every public function, class and method in files, which are not
    imported: django-q2 needs a project, and uwsgidecorators needs uWSGI."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = [each.arg for each in node.args.args]
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                    name = node.name if method.name == "__init__" else f"{node.name}.{method.name}"
                    found[name] = [each.arg for each in method.args.args][1:]
    return {name: given for name, given in found.items() if "_" not in (name[0], name.rpartition(".")[2][0])}


OURS = Path(qworker.__file__).parent


def test_positional_parameters_of_django_q2() -> None:
    where = importlib.util.find_spec("django_q")
    if where is None or where.origin is None:
        pytest.skip("django-q2 is not installed; the test extra has it")
    theirs = written(Path(where.origin).parent / "tasks.py")
    files = ("tasks.py", "several.py", "execution/calls.py", "waiting/fetching.py")
    ours = written(*(OURS / "django" / file for file in files))
    assert theirs.keys() - ours.keys() == set()
    assert [wrong for name in theirs if (wrong := disagreement(name, theirs[name], ours[name]))] == []
    short = {name: theirs[name][len(ours[name]) :] for name in theirs if len(ours[name]) < len(theirs[name])}
    assert short == {}


def test_positional_parameters_of_uwsgidecorators() -> None:
    where = importlib.util.find_spec("uwsgidecorators")
    if where is None or where.origin is None:
        pytest.skip("uwsgidecorators is not installed: pip install pyuwsgi")
    theirs, ours = written(Path(where.origin)), written(Path(decorators.__file__))
    shared = theirs.keys() & ours.keys()
    assert shared >= {
        "spool",
        "spoolforever",
        "spoolraw",
        "signal",
        "timer",
        "rbtimer",
        "cron",
        "filemon",
        "harakiri",
    }
    assert [wrong for name in shared if (wrong := disagreement(name, theirs[name], ours[name]))] == []
    short = {name: theirs[name][len(ours[name]) :] for name in shared if len(ours[name]) < len(theirs[name])}
    assert short == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.send_task("add", (1, 2), None, 10),
        lambda app: qworker.signature("add", (1, 2), None, None, True),
        lambda app: app.signature("add", (1, 2), None, None, True),
        lambda app: qworker.Signature("add", (1, 2), None, None, True),
    ],
)
def test_position_with_another_meaning_in_celery_is_refused(call: Callable[[Any], Any]) -> None:
    """A countdown, which used to be the task id here; a type, which used to be the immutable flag."""
    with pytest.raises(TypeError):
        call(make_app()[0])


def test_async_result_takes_celerys_positional_parameters() -> None:
    app, _, _ = make_app()
    parent = app.AsyncResult("p")
    made = qworker.AsyncResult("a", None, "add", app, parent)
    assert (made.id, made.app, made.parent) == ("a", app, parent)
    with pytest.raises(qworker.errors.NotAvailable, match="backend"):
        qworker.AsyncResult("a", app)


def test_pickled_result_keeps_the_argument_order_of_older_versions() -> None:
    """Old and new workers and clients exchange pickled results."""
    parent = qworker.AsyncResult("p")
    kind, given = qworker.AsyncResult("a", parent=parent, queue="q", ignored=True).__reduce__()
    assert given == ("a", None, parent, "q", True)
    made = kind(*given)
    assert (made.id, made.parent, made.__reduce__()[1]) == ("a", parent, given)
