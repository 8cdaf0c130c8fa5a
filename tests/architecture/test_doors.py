"""What the package shows to the world: sealed names, light start, errors that travel."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re
import subprocess
import sys
from importlib import import_module

import pytest

import qworker
from qworker import QWorker, errors
from tests.architecture.source import MODULES

ERRORS = sorted(
    {
        found
        for found in vars(errors).values()
        if inspect.isclass(found) and issubclass(found, BaseException) and found.__module__ == errors.__name__
    },
    key=lambda found: found.__name__,
)


def test_every_public_name_is_there() -> None:
    missing = [name for name in qworker.__all__ if not hasattr(qworker, name)]
    assert not missing


PUBLIC = (
    "qworker.app",
    "qworker.cli.main:main",
    "qworker.components",
    "qworker.conf",
    "qworker.errors",
    "qworker.logs",
    "qworker.signals",
    "qworker.states",
    "qworker.testing",
    "qworker.transports:register",
    "qworker.worker",
)
"""Paths that stay where they are, besides the names in ``qworker.__all__``."""
NAMES = (
    "AsyncResult", "ConfigurationError", "Context", "EagerResult", "GroupResult", "Ignore",
    "MaxRetriesExceeded", "Middleware", "NotRegistered", "PublishError", "QWorker", "QWorkerError", "Reject",
    "ResultSet", "ResultTimeout", "Retry",
    "Signature", "SoftTimeLimitExceeded", "Task", "TaskRevoked", "TimeLimitExceeded", "WorkerLost",
    "__version__", "allow_join_result", "current_app", "current_task", "errors", "get_task_logger",
    "shared_task", "signals", "states",
)  # fmt: skip
"""What ``from qworker import …`` has given since the first release."""
CLASSES = [name for name in NAMES if name not in vars(errors) and name[0].isupper()]


@pytest.mark.parametrize("path", PUBLIC)
def test_public_paths_stay(path: str) -> None:
    module, _, name = path.partition(":")
    assert hasattr(import_module(module), name or "__doc__")


def test_no_public_name_goes_away() -> None:
    assert set(NAMES) <= set(qworker.__all__)


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_are_known_by_the_front_door(name: str) -> None:
    """So that no pickle, traceback or page depends on the room that a class lives in."""
    kind = getattr(qworker, name)
    assert (kind.__module__, kind.__qualname__) == ("qworker", name)
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_public_errors_are_known_by_their_own_door() -> None:
    """``qworker.errors`` is public itself, and results are stored with that name."""
    kinds = [getattr(qworker, name) for name in NAMES if name in vars(errors)]
    assert {kind.__module__ for kind in kinds} == {"qworker.errors"}


def test_pickles_name_no_room() -> None:
    app = QWorker("doors", set_as_current=False)
    result = app.AsyncResult("an-id")
    assert b"qworker.results" not in pickle.dumps(result)
    assert b"qworker.canvas" not in pickle.dumps(app.signature("add", (1, 2)))


def test_public_names_are_sorted_and_unique() -> None:
    assert len(set(qworker.__all__)) == len(qworker.__all__)
    assert not [name for name in qworker.__all__ if name.startswith("_") and name != "__version__"]


def test_dir_shows_the_public_names_before_they_are_loaded() -> None:
    program = "import qworker; print(*sorted(set(qworker.__all__) - set(dir(qworker))))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "\n"
    )


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        qworker.no_such_thing  # noqa: B018


@pytest.mark.parametrize("module", ["sqlalchemy", "asyncio", "django", "celery", "http", "email", "uuid"])
def test_the_front_door_is_light(module: str) -> None:
    program = f"import sys, qworker; print({module!r} in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_travel_between_processes(error: type[BaseException]) -> None:
    original = error("what happened")
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert copy.args == original.args
    assert str(copy) == str(original)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_are_raised_by_somebody(error: type[BaseException]) -> None:
    """None is for what is not there. The two that stop a worker are raised by code of users, if at all."""
    texts = (path.read_text(encoding="utf-8") for name, path in MODULES.items() if name != errors.__name__)
    base = any(error in other.__bases__ for other in ERRORS)
    called = re.compile(rf"\b{error.__name__}\b")
    assert base or issubclass(error, SystemExit) or any(called.search(text) for text in texts)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_have_our_root_or_a_reason(error: type[BaseException]) -> None:
    # SoftTimeLimitExceeded and the two worker signals are raised *into* user code and must pass
    # "except QWorkerError".
    raised_into_code = {"SoftTimeLimitExceeded", "WorkerShutdown", "WorkerTerminate", "TaskDirective"}
    apart = raised_into_code & {base.__name__ for base in error.__mro__}
    assert issubclass(error, errors.QWorkerError) or apart
    assert error.__name__ not in dir(builtins) or error.__name__ == "TimeoutError"
