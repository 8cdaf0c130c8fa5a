"""Messages and stored exceptions compared with Celery: each library reads the other's."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

from celery.app.task import Context  # noqa: E402
from celery.backends.base import Backend  # noqa: E402
from celery.worker.request import Request  # noqa: E402
from kombu.transport.virtual import Message  # noqa: E402

from qworker import errors  # noqa: E402
from qworker.canvas.membership import is_ignored  # noqa: E402
from qworker.message.protocol import (  # noqa: E402
    TaskMessage,
    decode_body,
    encode,
    from_kombu,
    parse_headers,
    receive,
    to_kombu,
)
from qworker.message.serialization import exception_from_dict, exception_to_dict  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402

pytestmark = BESIDE_CELERY
ACCEPT = frozenset({"json"})
REQUEST = (
    "id", "name", "type", "root_id", "parent_id", "argsrepr", "kwargsrepr", "eta", "expires", "time_limits",
    "group",
    "group_index", "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps", "correlation_id",
)  # fmt: skip


def build(**settings: Any) -> tuple[Any, Callable[[], dict[str, Any]]]:
    """A Celery app's task, and a function that takes the last message it sent."""
    app = celery.Celery("proj", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_default_queue="compat", **settings)

    @app.task(name="proj.add", shared=False)
    def add(x: Any, y: Any) -> Any:
        return x + y

    def take() -> dict[str, Any]:
        with app.connection_for_read() as connection:
            sent = connection.default_channel._get("compat")
        return json.loads(json.dumps(sent))  # type: ignore[no-any-return]

    return add, take


def test_header_and_property_keys_equal_celerys() -> None:
    add, take = build()
    add.delay(1, 2)
    theirs = take()
    headers = theirs["headers"]
    encoded = encode(
        TaskMessage("proj.add", headers["id"], (1, 2), origin=headers["origin"], ignore_result=False)
    )
    ours = to_kombu(encoded, routing_key="compat")
    assert ours["headers"] == {name: headers[name] for name in ours["headers"]}
    assert not any(headers[name] for name in headers.keys() - ours["headers"].keys())
    assert ours["properties"].keys() == theirs["properties"].keys()
    assert ours["content-type"] == theirs["content-type"]


def test_celery_request_of_our_message_equals_its_own() -> None:
    add, take = build()
    add.delay(1, 2)
    theirs = take()
    id, origin = theirs["headers"]["id"], theirs["headers"]["origin"]
    ours = to_kombu(
        encode(TaskMessage("proj.add", id, (1, 2), origin=origin, ignore_result=False)), routing_key="compat"
    )
    seen = []
    with add.app.connection_for_read() as connection:
        for envelope in (theirs, json.loads(json.dumps(ours))):
            received = Message(envelope, connection.default_channel, accept={"application/json"})
            request = Request(received, app=add.app, task=add, hostname="w@h")
            context = Context(request.request_dict)
            seen.append(
                [
                    {name: getattr(request, name) for name in REQUEST},
                    {name: getattr(context, name) for name in theirs["headers"] if name != "stamps"},
                    context.stamps or {},
                    {**request.info(), "delivery_info": None},
                    {**context.as_execution_options(), "reply_to": None},
                ]
            )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("by_task", [True, False])
@pytest.mark.parametrize("options", [{}, {"ignore_result": True}, {"ignore_result": False}])
@pytest.mark.parametrize("by_name", [True, False])
def test_ignore_result_of_a_celery_message_is_read_like_celery_does(
    by_name: bool, options: dict[str, Any], by_task: bool
) -> None:
    add, take = build(task_ignore_result=by_task)
    call = partial(add.app.send_task, "proj.add") if by_name else add.apply_async
    call((1, 2), **options)
    theirs = take()
    with add.app.connection_for_read() as connection:
        received = Message(theirs, connection.default_channel, accept={"application/json"})
        request = Request(received, app=add.app, task=add, hostname="w@h")
    headers, _, _ = receive(*from_kombu(theirs), ACCEPT)
    assert is_ignored(headers, by_task) is request.ignore_result
    assert request.ignore_result is options.get("ignore_result", by_task)


def test_options_of_a_celery_message_are_read() -> None:
    add, take = build()
    when = datetime(2030, 1, 1, tzinfo=UTC)
    add.apply_async(
        (1,), {"y": when}, eta=when, expires=when, link=add.s(1), link_error=add.si(2, 2), time_limit=10,
        soft_time_limit=5, headers={"mine": "h"}, shadow="other", compression="gzip",
    )  # fmt: skip
    encoded = from_kombu(take())
    headers, properties, body = receive(*encoded, ACCEPT)
    assert body is None
    decoded = decode_body(encoded.body, headers, properties, ACCEPT)
    assert (decoded.args, decoded.kwargs) == ((1,), {"y": when})
    assert decoded.embed["callbacks"][0]["task"] == "proj.add"
    assert (headers["eta"], headers["timelimit"], headers["mine"]) == (when.isoformat(), [10, 5], "h")


@pytest.mark.parametrize("protocol", [1, 2])
def test_both_protocols_are_read(protocol: int) -> None:
    add, take = build(task_protocol=protocol)
    add.apply_async((1, 2), task_id="i", countdown=10)
    encoded = from_kombu(take())
    headers, properties, body = receive(*encoded, ACCEPT)
    body = body or decode_body(encoded.body, headers, properties, ACCEPT)
    assert (headers["task"], headers["id"], body.args) == ("proj.add", "i", (1, 2))
    assert headers["eta"] is not None


def test_chains_and_chords_of_celery_are_read() -> None:
    add, take = build()
    (add.s(1, 1) | add.s(2) | add.s(3)).delay()
    encoded = from_kombu(take())
    embed = decode_body(encoded.body, parse_headers(encoded.headers), {}, ACCEPT).embed
    assert [step["args"] for step in embed["chain"]] == [[3], [2]]
    celery.chord([add.s(1, 1), add.s(2, 2)], app=add.app)(add.s(3))
    encoded = from_kombu(take())
    headers = parse_headers(encoded.headers)
    embed = decode_body(encoded.body, headers, {}, ACCEPT).embed
    assert embed["chord"]["task"] == "proj.add"
    assert headers["group"] is not None
    assert headers["group_index"] == 0


def test_celery_worker_reads_our_message() -> None:
    add, _ = build()
    message = TaskMessage(
        "proj.add", "i", (1, b"\xff"), {"y": datetime(2030, 1, 1)}, eta="2030-01-01T00:00:00+00:00",
        timelimit=(10, 5), callbacks=[dict(add.s(1))], shadow="other", headers={"mine": 1},
        compression="gzip",
    )  # fmt: skip
    envelope = json.loads(json.dumps(to_kombu(encode(message), routing_key="compat")))
    with add.app.connection_for_read() as connection:
        received = Message(envelope, connection.default_channel, accept={"application/json"})
    request = Request(received, app=add.app, task=add, hostname="w@h")
    assert (request.id, request.name, request.time_limits) == ("i", "other", [10, 5])
    assert request.eta == datetime(2030, 1, 1, tzinfo=UTC)
    args, kwargs, embed = request.message.payload
    assert (args, kwargs) == ([1, b"\xff"], {"y": datetime(2030, 1, 1)})
    assert embed["callbacks"][0]["task"] == "proj.add"
    assert request.request_dict["mine"] == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 1),
        errors.TaskRevoked("revoked"),
        errors.TaskExpired(),
        errors.WorkerLost("gone"),
        errors.TimeLimitExceeded(30),
        errors.SoftTimeLimitExceeded(),
        errors.MaxRetriesExceeded("m"),
        errors.ChordError("c"),
        errors.NotRegistered("a.b"),
        errors.Reject("why", True),
        errors.ResultTimeout("late"),
        errors.SecurityError("s"),
        errors.InvalidTaskMessage("i"),
        errors.ConfigurationError("c"),
    ],
)
def test_exceptions_round_trip(error: Exception) -> None:
    add, _ = build()
    backend: Backend = add.app.backend
    stored = json.loads(json.dumps(exception_to_dict(error)))
    theirs = backend.exception_to_python(dict(stored))
    assert type(theirs).__name__ == stored["exc_type"]
    assert type(theirs).__module__ == stored["exc_module"]
    assert theirs.args == error.args
    back = exception_from_dict(json.loads(json.dumps(backend.prepare_exception(theirs, "json"))))
    assert type(back) is type(error)
    assert back.args == error.args
