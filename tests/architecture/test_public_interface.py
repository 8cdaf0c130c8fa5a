"""The public interface: stable names, a light import, errors that can be pickled."""

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


def test_every_public_name_is_importable() -> None:
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
"""Public paths besides the names in ``qworker.__all__``."""
NAMES = (
    "AsyncResult", "ConfigurationError", "Context", "EagerResult", "GroupResult", "Ignore",
    "MaxRetriesExceeded", "Middleware", "NotRegistered", "PublishError", "QWorker", "QWorkerError", "Reject",
    "ResultSet", "ResultTimeout", "Retry",
    "Signature", "SoftTimeLimitExceeded", "Task", "TaskRevoked", "TimeLimitExceeded", "WorkerLost",
    "__version__", "allow_join_result", "current_app", "current_task", "errors", "get_task_logger",
    "shared_task", "signals", "states",
)  # fmt: skip
"""Names that ``from qworker import …`` has offered since the first release."""
CLASSES = [name for name in NAMES if name not in vars(errors) and name[0].isupper()]


@pytest.mark.parametrize("path", PUBLIC)
def test_public_paths_are_stable(path: str) -> None:
    module, _, name = path.partition(":")
    assert hasattr(import_module(module), name or "__doc__")


def test_public_names_are_stable() -> None:
    assert set(NAMES) <= set(qworker.__all__)


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_belong_to_the_top_level_module(name: str) -> None:
    """So that pickles, tracebacks and documentation do not depend on the module that defines the class."""
    kind = getattr(qworker, name)
    assert (kind.__module__, kind.__qualname__) == ("qworker", name)
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_public_errors_belong_to_the_errors_module() -> None:
    """``qworker.errors`` is public itself, and stored results contain this name."""
    kinds = [getattr(qworker, name) for name in NAMES if name in vars(errors)]
    assert {kind.__module__ for kind in kinds} == {"qworker.errors"}


def test_pickles_do_not_name_internal_modules() -> None:
    app = QWorker("doors", set_as_current=False)
    result = app.AsyncResult("an-id")
    assert b"qworker.results" not in pickle.dumps(result)
    assert b"qworker.canvas" not in pickle.dumps(app.signature("add", (1, 2)))


def test_public_names_are_sorted_and_unique() -> None:
    assert len(set(qworker.__all__)) == len(qworker.__all__)
    assert not [name for name in qworker.__all__ if name.startswith("_") and name != "__version__"]


def test_dir_lists_public_names_before_they_are_loaded() -> None:
    program = "import qworker; print(*sorted(set(qworker.__all__) - set(dir(qworker))))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "\n"
    )


def test_unknown_name_raises_attribute_error_with_the_name() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        qworker.no_such_thing  # noqa: B018


@pytest.mark.parametrize("module", ["sqlalchemy", "asyncio", "django", "celery", "http", "email", "uuid"])
def test_importing_qworker_does_not_load_heavy_modules(module: str) -> None:
    program = f"import sys, qworker; print({module!r} in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_can_be_pickled(error: type[BaseException]) -> None:
    original = error("what happened")
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert copy.args == original.args
    assert str(copy) == str(original)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_raised_somewhere(error: type[BaseException]) -> None:
    """Base classes are exempt, and the two errors that stop a worker: only user code raises them."""
    texts = (path.read_text(encoding="utf-8") for name, path in MODULES.items() if name != errors.__name__)
    base = any(error in other.__bases__ for other in ERRORS)
    called = re.compile(rf"\b{error.__name__}\b")
    assert base or issubclass(error, SystemExit) or any(called.search(text) for text in texts)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_derive_from_our_base_class_or_are_exempt(error: type[BaseException]) -> None:
    # SoftTimeLimitExceeded and the two worker signals are raised *into* user code and must pass
    # "except QWorkerError".
    raised_into_code = {"SoftTimeLimitExceeded", "WorkerShutdown", "WorkerTerminate", "TaskDirective"}
    apart = raised_into_code & {base.__name__ for base in error.__mro__}
    assert issubclass(error, errors.QWorkerError) or apart
    assert error.__name__ not in dir(builtins) or error.__name__ == "TimeoutError"
