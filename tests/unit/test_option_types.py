"""The typed dictionaries of options have exactly the keys that are accepted at run time."""

from __future__ import annotations

import inspect

from qworker import CallOptions, QWorker, TaskOptions
from qworker.canvas.options import RetryOptions, SignatureOptions
from qworker.publishing.call import _KEPT, FOR_CELERYS_SAKE, OPTIONS
from qworker.publishing.connections import HANDED_IN
from qworker.tasks import options
from qworker.tasks.definition import make_task
from qworker.tasks.task import Task

HOOKS = {"before_start", "on_success", "on_retry", "on_failure", "after_return", "shadow_name"}
"""Methods of a task that users override, and that the decorator accepts as options."""
TYPED_ELSEWHERE = {"app", "function", "bind", "base", "options"}
"""Parameters of make_task() that are not options, or that the decorators declare themselves."""
ACCEPTED = {*OPTIONS, *FOR_CELERYS_SAKE, *HANDED_IN}


def test_task_options_match_the_decorator() -> None:
    parameters = inspect.signature(make_task).parameters.keys() - TYPED_ELSEWHERE
    assert TaskOptions.__annotations__.keys() == options.OPTIONS.keys() | parameters | HOOKS


def test_hooks_are_accepted_as_options() -> None:
    app = QWorker("hooks", set_as_current=False)
    task = app.task(**dict.fromkeys(HOOKS, print))(len)
    assert [getattr(type(task), hook) for hook in HOOKS] == [print] * len(HOOKS)


def test_options_are_optional_where_task_attributes_are() -> None:
    """For any other option None would become the task's value, as no setting is its default."""
    optional = {name for name, type in TaskOptions.__annotations__.items() if _takes_none(type)}
    assert optional & options.OPTIONS.keys() == {
        name for name in options.OPTIONS if _takes_none(Task.__annotations__[name])
    }


def _takes_none(annotation: object) -> bool:
    text = str(getattr(annotation, "__forward_arg__", annotation))
    return text == "Any" or text.endswith("| None")


def test_call_options_match_the_accepted_ones() -> None:
    assert CallOptions.__annotations__.keys() == ACCEPTED - {"task_id"}
    assert SignatureOptions.__annotations__.keys() == ACCEPTED


def test_retry_options_are_those_a_retry_does_not_keep() -> None:
    assert RetryOptions.__annotations__.keys() == ACCEPTED - _KEPT - {"countdown", "eta"}
