"""What follows a task: its callbacks, the next of its chain, its errbacks.

Comes from:  execution, after the body and before the ack; the calls came inside the message.
Goes to:     publishing, as calls of their own with this task as parent; some errbacks run at once.
Thread:      whichever ran the task.

The calls carry the ids that were settled when they were linked, so a task that runs again sends the same
calls again.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from qworker.canvas.signature import Signature
from qworker.errors import BrokerUnavailable, PublishError
from qworker.publishing.call import OPTIONS
from qworker.tasks.coroutines import run_to_end

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.context import Context
    from qworker.tasks.task import Task

logger = logging.getLogger(__name__)


def succeeded(app: QWorker, context: Context, value: Any) -> None:
    """Send the callbacks and the next of the chain, with *value* put before their arguments.

    Raises PublishError or BrokerUnavailable when one of them cannot be sent.
    """
    for callback in context.callbacks or ():
        _call(app, context, callback, (value,))
    if context.chain:
        # The chain is kept in reverse: the last comes next, and takes the others along.
        *rest, following = context.chain
        _call(app, context, following, (value,), chain=rest or None)
    if context.chord:
        logger.error(
            "task %s[%s] is part of a chord, which this version does not join", context.task, context.id
        )


def failed(app: QWorker, context: Context, error: BaseException, traceback: str) -> None:
    """Call the errbacks. Never raises.

    An errback that takes ``(request, exc, traceback)`` before its own arguments is run here and now. Every
    other is sent, with the id of the failed task before its arguments. So is one that is immutable, bound, or
    not known here.
    """
    for errback in context.errbacks or ():
        signature = Signature(errback, app=app)
        arguments = (context, error, traceback)
        try:
            if _takes(app.tasks.get(signature.task), signature, arguments):
                returned = signature(*arguments)
                if isinstance(returned, Coroutine):
                    run_to_end(returned)
            else:
                _call(app, context, errback, (context.id,))
        except (
            PublishError,
            BrokerUnavailable,
        ) as unsent:  # the failure itself is told and stored, and must stand
            logger.error("an errback of task %s[%s] was not sent: %s", context.task, context.id, unsent)
        except (Exception, SystemExit):
            logger.exception("errback %s of task %s[%s] raised", signature.task, context.task, context.id)


def _takes(task: Task[..., Any] | None, errback: Signature, arguments: tuple[Any, ...]) -> bool:
    """Whether *task*, which *errback* calls, is a function that takes *arguments* first. Celery asks this,
    too."""
    if task is None or task.bind or errback.immutable:
        return False
    from inspect import signature  # 10 ms, for those alone whose task has failed

    try:
        signature(task.run).bind(*arguments, *errback.args, **errback.kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _call(
    app: QWorker, context: Context, call: Mapping[str, Any], args: tuple[Any, ...], **more: Any
) -> None:
    signature = Signature(call, app=app)
    # Whatever a Celery producer has put beside the options that we know is for its own eyes.
    options = {name: value for name, value in signature.options.items() if name in OPTIONS}
    if context.reply_to is not None:  # who called the first is to hear of all
        options.setdefault("reply_to", context.reply_to)
    if isinstance(priority := options.get("priority"), int):  # RabbitMQ has more of them
        options["priority"] = max(0, min(priority, app.conf.task_queue_max_priority))
    signature["options"] = options
    stamps = {"stamps": context.stamps, "stamped_headers": context.stamped_headers} if context.stamps else {}
    try:
        signature.apply_async(
            args, **{**stamps, **{name: value for name, value in more.items() if value is not None}}
        )
    except TypeError as error:  # it does not take what is put before its arguments
        raise PublishError(
            f"{signature.task}, which follows {context.task}, was not sent: {error}"
        ) from error
