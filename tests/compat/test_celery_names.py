"""Every public name of Celery exists in qworker or is refused with an explanation.

The names are those of the installed Celery, so new ones fail here before users notice.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

from celery import exceptions as celery_exceptions  # noqa: E402
from celery import signals as celery_signals  # noqa: E402
from celery.app.control import Control  # noqa: E402
from celery.app.defaults import _OLD_SETTING_KEYS, _TO_NEW_KEY, SETTING_KEYS  # noqa: E402
from celery.app.task import Context as CeleryContext  # noqa: E402
from celery.app.task import Task as CeleryTask  # noqa: E402
from celery.bin.celery import celery as command_line  # noqa: E402
from celery.bin.worker import worker as worker_command  # noqa: E402
from celery.canvas import Signature as CelerySignature  # noqa: E402
from celery.result import AsyncResult as CeleryResult  # noqa: E402
from celery.result import EagerResult as CeleryEagerResult  # noqa: E402
from celery.result import GroupResult as CeleryGroupResult  # noqa: E402
from celery.result import ResultSet as CeleryResultSet  # noqa: E402

import qworker  # noqa: E402
from qworker import Context, errors, signals  # noqa: E402
from qworker.cli.main import ALIASES, COMMANDS  # noqa: E402
from qworker.cli.start import start  # noqa: E402
from qworker.conf.compat import understand  # noqa: E402
from qworker.errors import IncompleteStream, NotAvailable  # noqa: E402
from qworker.tasks.eager import EagerResult  # noqa: E402
from tests.support.stores import make_app  # noqa: E402

pytestmark = pytest.mark.compat

INTERNAL = {
    "app": {
        # internals that Celery does not document for users
        "IS_WINDOWS", "IS_macOS", "Pickler", "SYSTEM", "amqp_cls", "backend_cls", "builtin_fixups",
        "control_cls",
        "events_cls", "loader_cls", "log_cls", "registry_cls", "oid", "thread_oid", "prepare_config",
    },
    "request": {"as_execution_options", "clear", "taskset"},
    "control": {"Mailbox"},
}  # fmt: skip
ANOTHER_WAY = {"task_cls", "Task", "annotate", "time_limit", "soft_time_limit"}
"""Tested elsewhere."""


def objects() -> dict[str, tuple[Any, Any]]:
    app, _, _ = make_app()

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return {
        "app": (celery.Celery, app),
        "task": (CeleryTask, add),
        "request": (CeleryContext, Context(task="add")),
        "result": (CeleryResult, app.AsyncResult("a")),
        "group": (CeleryGroupResult, app.GroupResult("g", [app.AsyncResult("a")])),
        "set": (CeleryResultSet, app.ResultSet([app.AsyncResult("a")])),
        "eager": (CeleryEagerResult, EagerResult("e", 1, "SUCCESS", app=app)),
        "signature": (CelerySignature, add.s()),
        "control": (Control, app.control),
    }


def exists_or_explains(owner: Any, name: str, refusal: type[Exception]) -> bool:
    """Whether *owner* has the attribute or raises *refusal* with an explanation; AttributeError otherwise."""
    try:
        getattr(owner, name)
    except refusal as error:
        return len(str(error)) > 40
    except IncompleteStream:
        pass  # the graph of an unfinished result
    return True


NAMES = [
    (kind, name)
    for kind, (theirs, _) in objects().items()
    for name in dir(theirs)
    if not name.startswith("_")
]


@pytest.mark.parametrize(("kind", "name"), NAMES, ids=[f"{kind}.{name}" for kind, name in NAMES])
def test_every_attribute_exists_or_is_refused(kind: str, name: str) -> None:
    if name in INTERNAL.get(kind, ()) or name in ANOTHER_WAY:
        return
    assert exists_or_explains(objects()[kind][1], name, NotAvailable)


OF_RESULTS = {
    kind: theirs for kind, (theirs, _) in objects().items() if kind in ("result", "group", "set", "eager")
}
METHODS = [
    (kind, name)
    for kind, theirs in OF_RESULTS.items()
    for name in dir(theirs)
    if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(theirs, name))
]
NOT_PASSED = {"self", "kwargs", "EXCEPTION_STATES", "PROPAGATE_STATES"}
"""Parameters that are not passed, and constants that Celery keeps as parameters."""
REFUSED = {"revoke_by_stamped_headers", "throw"}


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{kind}.{name}" for kind, name in METHODS])
def test_result_methods_take_celerys_arguments_in_order(kind: str, name: str) -> None:
    theirs, ours = objects()[kind]
    if name in REFUSED:
        with pytest.raises(NotAvailable):
            getattr(ours, name)
        return
    expected = [
        each for each in inspect.signature(getattr(theirs, name)).parameters if each not in NOT_PASSED
    ]
    parameters = inspect.signature(getattr(ours, name)).parameters
    if any(each.kind is each.VAR_POSITIONAL for each in parameters.values()):
        expected = expected[: len(parameters) - 2]  # it accepts any
    assert list(parameters)[: len(expected)] == expected


@pytest.mark.parametrize("kind", OF_RESULTS)
def test_result_constructors_take_celerys_arguments(kind: str) -> None:
    theirs, ours = objects()[kind]
    internal = {"ready_barrier"}
    expected = inspect.signature(theirs.__init__).parameters.keys() - NOT_PASSED - internal
    assert expected <= inspect.signature(type(ours).__init__).parameters.keys()


@pytest.mark.parametrize("kind", OF_RESULTS)
def test_results_can_be_copied_and_pickled(kind: str) -> None:
    ours = objects()[kind][1]
    for again in (copy.copy(ours), pickle.loads(pickle.dumps(ours))):
        assert (type(again), again) == (type(ours), ours)


@pytest.mark.parametrize("name", sorted(name for name in celery.__all__ if not name.startswith("_")))
def test_every_top_level_name_exists_or_is_refused(name: str) -> None:
    old = {"SERIES", "VERSION", "VERSION_BANNER", "version_info", "version_info_t", "execute", "local", "log",
           "messaging", "registry"}  # fmt: skip
    modules = {"signature"}  # app.signature() is the function; our module has this name
    if name in old | modules:
        return
    assert exists_or_explains(qworker, name, ImportError)


@pytest.mark.parametrize("name", celery_signals.__all__)
def test_every_signal_exists_or_is_refused(name: str) -> None:
    assert exists_or_explains(signals, name, ImportError)


@pytest.mark.parametrize("name", celery_exceptions.__all__)
def test_every_exception_exists(name: str) -> None:
    warnings = {"CeleryWarning", "AlwaysEagerIgnored", "DuplicateNodenameWarning", "DuplicateTaskNameWarning",
                "FixupWarning", "NotConfigured", "SecurityWarning", "CPendingDeprecationWarning",
                "CDeprecationWarning"}  # fmt: skip
    internal = {"reraise", "CeleryCommandException"}
    assert name in warnings | internal or issubclass(getattr(errors, name), BaseException)


@pytest.mark.parametrize("name", sorted(SETTING_KEYS))
def test_every_setting_is_understood(name: str) -> None:
    assert understand(name) is not None


@pytest.mark.parametrize("name", sorted(_OLD_SETTING_KEYS))
def test_old_setting_names_mean_the_same(name: str) -> None:
    old, new = understand(name), understand(_TO_NEW_KEY[name])
    assert old is not None
    assert new is not None
    short_ways = {"BROKER_TRANSPORT": "broker_url", "CELERY_RESULT_DBURI": "result_backend"}
    assert old.name == short_ways.get(name, new.name)


@pytest.mark.parametrize("option", worker_command.params, ids=lambda option: option.opts[-1])
def test_every_worker_option_exists(option: Any) -> None:
    ours = {name for each in start.params for name in each.opts}
    assert set(option.opts) <= ours or option.name in ("hostname",), option.opts


@pytest.mark.parametrize("name", sorted(command_line.commands))
def test_every_command_exists_or_is_refused(name: str) -> None:
    from qworker.cli.main import main

    assert name in {*COMMANDS, *ALIASES} or len(main.without(name) or "") > 20  # type: ignore[attr-defined]
