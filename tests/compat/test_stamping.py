"""Stamping compared with Celery's: the same visitors give the same stamps to the same workflows."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")

from celery import canvas as celery_canvas  # noqa: E402
from celery.app.task import Context as CeleryContext  # noqa: E402
from celery.signals import before_task_publish as celery_publishes  # noqa: E402

from qworker import QWorker, canvas  # noqa: E402
from qworker.message.context import Context  # noqa: E402
from tests.compat.canvas_cases import CASES, app_in_use, failing, linked, namespace  # noqa: E402
from tests.servers import new_prefix, require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402
from tests.support.stores import KeepingStore  # noqa: E402

pytestmark = BESIDE_CELERY


class Telling:
    """Stamps every part with its kind and the visitor method called."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"called": sig.task, "on": "signature"}

    def on_group_start(self, group: Any, **headers: Any) -> dict[str, Any]:
        return {"grouped": True, "on": "group"}

    def on_chain_start(self, chain: Any, **headers: Any) -> dict[str, Any]:
        return {"chained": len(chain.tasks), "on": "chain"}

    def on_chord_body(self, sig: Any, **header: Any) -> dict[str, Any]:
        return {"body": True, "on": "body"}

    def on_callback(self, callback: Any, **header: Any) -> dict[str, Any]:
        return {"linked": True, "on": "callback"}

    def on_errback(self, errback: Any, **header: Any) -> dict[str, Any]:
        return {"told": True, "on": "errback"}


class Choosing:
    """Stamps some calls, with some of the returned headers."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        if sig.task != "mul":
            return {}
        return {"chosen": 1, "priority": 3, "stamped_headers": ["chosen"]}


class Lists:
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"seen": ["signature"], "deep": {"x": [1], "y": 2}}

    def on_chain_start(self, chain: Any, **headers: Any) -> dict[str, Any]:
        return {"seen": ["chain"], "deep": {"x": [2], "z": 1}}


class Silent:
    """Without a visitor Celery leaves out the body of a chord."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {}


VISITORS = {"telling": Telling, "choosing": Choosing, "lists": Lists, "silent": Silent}

MORE: dict[str, Callable[[Any], Any]] = {
    "callbacks and errbacks": lambda n: failing(linked(n.add.s(1, 2), n.mul.s(3)), n.count.s()),
    "callbacks of callbacks": lambda n: linked(n.add.s(1, 2), linked(n.mul.s(3), n.add.s(4))),
    "a callback that is a chain": lambda n: linked(n.add.s(1, 2), n.mul.s(3) | n.add.s(4)),
    "stamped before": lambda n: stamped(n.add.s(1, 2), by="me", on="before") | n.mul.s(3),
    "a call with options": lambda n: n.add.s(1, 2).set(queue="far", priority=1),
}
ALL = {
    **{
        name: build
        for name, build in CASES.items()
        # Celery asks the result backend for these, or they are not signatures.
        if name not in ("group in a group", "chord of a group", "header that ends in a group")
    },
    **MORE,
}
DIFFERENT = {
    "chunks": "Celery does not stamp the calls that they become",
    "two groups": "Celery has the second chord in the body of the first, here they are steps of one chain",
    **dict.fromkeys(
        ["group of the same call", "link_error on a chord of chords"],
        "Celery stamps one signature as often as it stands there",
    ),
    **dict.fromkeys(
        ["chain(chord, task, task, group)", "chord of nothing, then a group"],
        "Celery has what follows a chord in its body, here it is a step of the chain",
    ),
    "chain of a chain": "Celery makes one chain of a chain that is alone in another",
    **dict.fromkeys(
        ["link on a chain", "link_error on a chain", "link_error on a chain of a chord"],
        "Celery forgets append_stamps for what is linked to a chain",
    ),
    **dict.fromkeys(
        ["link_error on a chain of a chain", "link_error on a chord whose body is a chain"],
        "the errbacks stand elsewhere, see test_canvas_cases.py",
    ),
}
"""Cases whose stamps differ from Celery's with some visitors, and why."""
RESULTS = {"global_keyprefix": new_prefix()}
GIVEN: tuple[dict[str, Any], ...] = ({}, {"by": "you", "more": [1]})


def stamped(call: Any, **stamps: Any) -> Any:
    call.stamp(**stamps)
    return call


def visitor_of(name: str, base: Any) -> Any:
    kind = VISITORS[name]
    return type(kind.__name__, (kind, base), {})()


def carried(headers: Any, embed: Any) -> Any:
    """The stamps of a message and of all calls in it."""
    stamps = {name: comparable(headers["stamps"].get(name)) for name in headers["stamped_headers"] or ()}
    within = {
        name: [inside(each) for each in embed.get(name) or ()] for name in ("callbacks", "errbacks", "chain")
    }
    return [headers["task"], stamps, within, inside(embed.get("chord"))]


def inside(call: Any) -> Any:
    if isinstance(call, list | tuple):
        return [inside(each) for each in call]
    if not isinstance(call, dict) or "task" not in call or "options" not in call:
        return None
    if call.get("subtask_type") == "chain":  # equivalent to its first step with the rest in the option chain
        first, *rest = call["kwargs"]["tasks"]
        more = [*(call["options"].get("chain") or ()), *reversed(rest)]
        return inside({**first, "options": {**first["options"], "chain": more}})
    options, kwargs = call["options"], call["kwargs"]
    header = kwargs.get("header")
    header = header["kwargs"]["tasks"] if isinstance(header, dict) else header
    names = options.get("stamped_headers") or ()
    links = [inside(options.get(name) or []) for name in ("link", "link_error", "chain")]
    parts = [inside(each) for each in (kwargs.get("tasks"), header, kwargs.get("body"))]
    return [
        call["task"],
        {name: comparable(options[name]) for name in names if name in options},
        links,
        parts,
    ]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def comparable(value: Any) -> Any:
    """Of a list, only the set of its elements: Celery changes lists of existing stamps in place, so
    neighbours may share stamps."""
    if isinstance(value, list):
        return sorted({json.dumps(each): each for each in value}.items())
    if not isinstance(value, dict):
        return value
    return {name: comparable(each if isinstance(each, list) else [each]) for name, each in value.items()}


@pytest.fixture(scope="module")
def theirs() -> Any:
    app = celery.Celery("proj", broker="memory://", backend=require("redis"), set_as_current=False)
    app.conf.result_backend_transport_options = RESULTS
    yield namespace(app, celery_canvas)
    app.close()


@pytest.fixture(scope="module")
def ours() -> Any:
    store = KeepingStore()
    app = QWorker(
        "proj",
        broker=store,
        backend=require("redis"),
        result_backend_transport_options=RESULTS,
        canvas_format="celery",
    )
    made = namespace(app, canvas)
    made.store = store
    yield made
    app.close()


def by_celery(n: Any, build: Callable[[Any], Any], stamps: Callable[[Any, Any], Any]) -> list[Any] | None:
    """The messages that Celery sends; None if it raises KeyError, for stamps that only a neighbour has."""
    published: list[Any] = []

    def note(body: Any = None, headers: Any = None, **more: Any) -> None:
        published.append(carried(plain(headers), plain(body[2])))

    celery_publishes.connect(note, weak=False)
    try:
        with app_in_use(n.app):
            call = build(n)
            stamps(call, celery_canvas.StampingVisitor)
            call.delay()
    except KeyError:
        return None
    finally:
        celery_publishes.disconnect(note)
    return published


def by_us(n: Any, build: Callable[[Any], Any], stamps: Callable[[Any, Any], Any]) -> list[Any]:
    n.store.pushes.clear()
    call = build(n)
    stamps(call, canvas.StampingVisitor)
    call.delay()
    return [carried(each.headers, plain(each.body[2])) for each in n.store.sent]


@pytest.mark.parametrize("append", [False, True], ids=["first", "append"])
@pytest.mark.parametrize("given", GIVEN, ids=["no headers", "headers"])
@pytest.mark.parametrize("visitor", VISITORS)
def test_stamps_equal_celerys(
    visitor: str, given: dict[str, Any], append: bool, theirs: Any, ours: Any
) -> None:
    def stamps(call: Any, base: Any) -> None:
        call.stamp(visitor_of(visitor, base), append, **deepcopy(given))

    found = {
        name: (by_us(ours, build, stamps), by_celery(theirs, build, stamps)) for name, build in ALL.items()
    }
    other = {name for name, (got, expected) in found.items() if expected is not None and got != expected}
    assert other <= set(DIFFERENT), {name: found[name] for name in other - set(DIFFERENT)}
    assert len(found) - len(other) > 50


@pytest.mark.parametrize("writer", ["celery", "qworker"])
def test_extended_results_with_stamps_are_read_by_both(writer: str, tmp_path: Path) -> None:
    """From Celery's tables, which have a column for stamps."""
    url = f"db+sqlite:///{tmp_path}/results.db"
    stamps = {"by": "me", "of": [1, 2]}
    both = [
        celery.Celery("proj", broker="memory://", backend=url, set_as_current=False, result_extended=True),
        QWorker("proj", broker=KeepingStore(), backend=url, set_as_current=False, result_extended=True),
    ]
    if writer == "celery":
        request = CeleryContext(id="x", task="add", stamped_headers=["by", "of"], stamps=stamps)
        both[0].backend.store_result("x", 5, "SUCCESS", request=request)
    else:
        context = Context(id="x", task="add", stamped_headers=["by", "of"], stamps=stamps)
        backend = both[1].backend
        backend.store("x", backend.meta("x", "SUCCESS", 5, context=context))
    for app in both:
        meta = app.backend.get_task_meta("x")
        assert (meta["result"], meta["by"], meta["of"], meta["stamped_headers"]) == (
            5,
            "me",
            [1, 2],
            ["by", "of"],
        )
        app.close()
