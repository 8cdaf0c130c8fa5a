"""What type checkers know of options is what is accepted: no key is missing, and none is refused."""

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
"""Methods of a task that the decorator takes as options, and that are for users to write."""
TYPED_ELSEWHERE = {"app", "function", "bind", "base", "options"}
"""Parameters of what makes a task that are no options, or that the decorators name themselves."""
ACCEPTED = {*OPTIONS, *FOR_CELERYS_SAKE, *HANDED_IN}


def test_task_options_are_those_that_the_decorator_takes() -> None:
    parameters = inspect.signature(make_task).parameters.keys() - TYPED_ELSEWHERE
    assert TaskOptions.__annotations__.keys() == options.OPTIONS.keys() | parameters | HOOKS


def test_a_hook_is_taken_as_an_option() -> None:
    app = QWorker("hooks", set_as_current=False)
    task = app.task(**dict.fromkeys(HOOKS, print))(len)
    assert [getattr(type(task), hook) for hook in HOOKS] == [print] * len(HOOKS)


def test_an_option_may_be_none_where_a_task_may_have_none() -> None:
    """Else None would be what the task has: there is no setting behind the option."""
    optional = {name for name, type in TaskOptions.__annotations__.items() if _takes_none(type)}
    assert optional & options.OPTIONS.keys() == {
        name for name in options.OPTIONS if _takes_none(Task.__annotations__[name])
    }


def _takes_none(annotation: object) -> bool:
    text = str(getattr(annotation, "__forward_arg__", annotation))
    return text == "Any" or text.endswith("| None")


def test_call_options_are_those_that_calls_take() -> None:
    assert CallOptions.__annotations__.keys() == ACCEPTED - {"task_id"}
    assert SignatureOptions.__annotations__.keys() == ACCEPTED


def test_retry_options_are_those_that_the_next_attempt_does_not_keep() -> None:
    assert RetryOptions.__annotations__.keys() == ACCEPTED - _KEPT - {"countdown", "eta"}
