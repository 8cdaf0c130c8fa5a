"""Cases of Celery's canvas, each built with names that both libraries have.

Comes from:  nowhere: a case is a function of a namespace().
Goes to:     the tests that run each case with both libraries, the recorder of Celery's messages, and
             canvas_page.
Thread:      the test's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import celery

Build = Callable[[Any], Any]

CASES: dict[str, Build] = {
    "one call": lambda n: n.add.s(1, 2),
    "chain of one": lambda n: n.chain(n.add.s(1, 2)),
    "chain": lambda n: n.chain(n.add.s(1, 2), n.mul.s(3), n.add.s(4)),
    "chain of a list": lambda n: n.chain([n.add.s(1, 2), n.mul.s(3)]),
    "chain of a generator": lambda n: n.chain(n.add.s(*rest) for rest in [(1, 2), (3,), (4,)]),
    "pipe": lambda n: n.add.s(1, 2) | n.mul.s(3) | n.add.s(4),
    "pipe to a chain": lambda n: n.add.s(1, 2) | (n.mul.s(3) | n.add.s(4)),
    "chain in a chain": lambda n: n.chain(n.add.s(1, 2), n.chain(n.mul.s(3), n.add.s(4)), n.mul.s(2)),
    "chain with an immutable": lambda n: n.chain(n.add.s(1, 2), n.add.si(5, 6), n.mul.s(2)),
    "chain of equal calls": lambda n: n.chain(n.add.s(1, 1), *[n.add.s(1)] * 3),
    "chain with options": lambda n: n.chain(n.add.s(1, 2).set(queue="far"), n.mul.s(3).set(queue="near")),
    "group": lambda n: n.group(n.add.s(1, 2), n.mul.s(3, 4)),
    "group of one": lambda n: n.group(n.add.s(1, 2)),
    "group of one in a list": lambda n: n.group([n.add.s(1, 2)]),
    "group of a generator": lambda n: n.group(n.add.s(x, x) for x in range(3)),
    "group of the same call": lambda n: n.group([n.add.s(1, 2)] * 3),
    "group in a group": lambda n: n.group(
        n.add.s(1, 2), n.group(n.mul.s(3, 4), n.mul.s(5, 6)), n.add.s(7, 8)
    ),
    "group of chains": lambda n: n.group(n.add.s(1, 2) | n.mul.s(3), n.add.s(4, 5) | n.mul.s(6)),
    "group with an empty chain": lambda n: n.group([n.add.s(1, 2), n.chain([])]),
    "group of a chord": lambda n: n.group(n.chord([n.add.s(1, 2)], n.xsum.s()), n.add.s(3, 4)),
    "chain that ends in a group": lambda n: n.chain(n.add.s(1, 2), n.group(n.mul.s(3), n.add.s(4))),
    "group of one at the end": lambda n: n.chain(n.add.s(1, 2), n.group(n.mul.s(3))),
    "group of one in the middle": lambda n: n.chain(n.add.s(1, 2), n.group(n.mul.s(3)), n.add.s(4)),
    "group of one at the start": lambda n: n.chain(n.group(n.add.s(1, 2)), n.mul.s(3)),
    "group of one, piped": lambda n: n.group(n.add.s(1, 2)) | n.xsum.s(),
    "empty group in the middle": lambda n: n.chain(n.add.s(1, 2), n.group([]), n.mul.s(3)),
    "empty group at the start": lambda n: n.chain(n.group([]), n.add.s(1, 2), n.mul.s(3)),
    "empty group at the end": lambda n: n.chain(n.add.s(1, 2), n.group([])),
    "pipe to an empty group": lambda n: n.add.s(1, 2) | n.mul.s(3) | n.group([]),
    "chord": lambda n: n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()),
    "chord called with its body": lambda n: n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s(start=5)),
    "group | task": lambda n: n.group(n.add.s(1, 2), n.add.s(3, 4)) | n.xsum.s(),
    "group | task | task": lambda n: n.group(n.add.s(1, 2), n.add.s(3, 4)) | n.xsum.s() | n.mul.s(2),
    "group | chain": lambda n: n.group(n.add.s(1, 2), n.add.s(3, 4)) | (n.xsum.s() | n.mul.s(2)),
    "chain(group, task, task)": lambda n: n.chain(
        n.group(n.add.s(1, 2), n.add.s(3, 4)), n.xsum.s(), n.mul.s(2)
    ),
    "group in the middle": lambda n: n.chain(
        n.add.s(1, 2), n.group(n.mul.s(3), n.add.s(4)), n.xsum.s(), n.add.s(1)
    ),
    "two groups": lambda n: n.chain(
        n.add.s(1, 2),
        n.group(n.mul.s(3), n.add.s(4)),
        n.xsum.s(),
        n.group(n.mul.s(2), n.mul.s(3)),
        n.xsum.s(),
    ),
    "group then group": lambda n: n.chain(
        n.group(n.add.s(1, 2), n.add.s(3, 4)), n.group(n.xsum.s(), n.count.s())
    ),
    "chord | task": lambda n: n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()) | n.mul.s(2),
    "chord | group": lambda n: (
        n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()) | n.group(n.mul.s(2), n.mul.s(3))
    ),
    "chord | group of one": lambda n: n.chord([n.add.s(1, 2)], n.xsum.s()) | n.group(n.mul.s(2)),
    "chord | chord": lambda n: (
        n.chord([n.add.s(1, 2)], n.xsum.s()) | n.chord([n.add.s(3), n.add.s(4)], n.xsum.s())
    ),
    "chord in a chain": lambda n: n.chain(
        n.add.s(1, 2), n.chord([n.mul.s(3), n.mul.s(4)], n.xsum.s()), n.add.s(5)
    ),
    "chord of a chain": lambda n: n.chord([n.add.s(1, 2) | n.mul.s(3), n.add.s(4, 5)], n.xsum.s()),
    "chord of chords": lambda n: n.chord(
        [n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()), n.add.s(5, 6)], n.xsum.s()
    ),
    "chord of a group": lambda n: n.chord([n.group(n.add.s(1, 2), n.add.s(3, 4)), n.add.s(5, 6)], n.xsum.s()),
    "chord of a chain of a chord": lambda n: n.chord(
        [n.add.s(1, 2) | n.chord([n.mul.s(3), n.mul.s(4)], n.xsum.s()) | n.add.s(1), n.add.s(5, 6)],
        n.xsum.s(),
    ),
    "chord whose body is a chain": lambda n: n.chord([n.add.s(1, 2)], n.xsum.s() | n.mul.s(2) | n.add.s(1)),
    "chord whose body is a group": lambda n: n.chord(
        [n.add.s(1, 2), n.add.s(3, 4)], n.group(n.xsum.s(), n.count.s())
    ),
    "chord whose body is a chord": lambda n: n.chord(
        [n.add.s(1, 2)], n.chord([n.xsum.s(), n.count.s()], n.xsum.s())
    ),
    "chord of nothing": lambda n: n.chord([], n.xsum.s()),
    "chord with an immutable body": lambda n: n.chord([n.add.s(1, 2)], n.add.si(3, 4)),
    "chord of immutables in a chain": lambda n: n.chain(
        n.add.s(1, 2), n.chord([n.add.si(3, 4), n.mul.s(5)], n.xsum.s())
    ),
    "header that ends in a group": lambda n: n.chord(
        [n.add.s(1, 2) | n.group(n.add.s(1), n.add.s(2)), n.add.s(3, 4)], n.count.s()
    ),
    "chord | task | group": lambda n: (
        n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()) | n.mul.s(2) | n.group(n.add.s(1), n.add.s(2))
    ),
    "chain(chord, chord)": lambda n: n.chain(
        n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()), n.chord([n.mul.s(2), n.mul.s(3)], n.xsum.s())
    ),
    "chain(chord, task, task, group)": lambda n: n.chain(
        n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()),
        n.mul.s(2),
        n.add.s(1),
        n.group(n.add.s(1), n.add.s(2)),
    ),
    "chain(task, chord, task, chord)": lambda n: n.chain(
        n.add.s(1, 2),
        n.chord([n.mul.s(3), n.add.s(4)], n.xsum.s()),
        n.add.s(1),
        n.chord([n.mul.s(2), n.mul.s(3)], n.xsum.s()),
    ),
    "chord of nothing in a chain": lambda n: n.chain(n.chord([], n.xsum.s()), n.add.s(1)),
    "chord of nothing, then a group": lambda n: n.chain(
        n.chord([], n.xsum.s()), n.group(n.add.s(1), n.add.s(2)), n.xsum.s()
    ),
    "chord of one": lambda n: n.chord(n.add.s(1, 2), n.xsum.s()),
    "chord of a group of one": lambda n: n.chord(n.group(n.add.s(1, 2)), n.xsum.s()),
    "chord of equal calls": lambda n: n.chord([n.add.s(1, 2)] * 3, n.xsum.s()),
    "chord of a map": lambda n: n.chord([n.xsum.map([[1, 2], [3]]), n.add.starmap([(1, 2)])], n.count.s()),
    "chord with options": lambda n: n.chord(
        [n.add.s(1, 2).set(queue="far"), n.add.s(3, 4)], n.xsum.s().set(queue="near")
    ),
    "chord whose body is an immutable chain": lambda n: n.chord(
        [n.add.s(1, 2), n.add.s(3, 4)], n.add.si(5, 6) | n.mul.s(2)
    ),
    "chord in the body's group": lambda n: n.chord(
        [n.add.s(1, 2)], n.group(n.xsum.s(), n.chord([n.xsum.s(), n.count.s()], n.xsum.s()))
    ),
    "group | group | task": lambda n: (
        n.group(n.add.s(1, 2), n.add.s(3, 4)) | n.group(n.xsum.s(), n.count.s()) | n.xsum.s()
    ),
    "group with options": lambda n: n.group(n.add.s(1, 2), n.add.s(3, 4)).set(queue="far"),
    "group of an empty group": lambda n: n.group(n.group([]), n.add.s(1, 2)),
    "immutable group": lambda n: immutable(n.group(n.add.s(1, 2), n.add.s(3, 4))),
    "immutable group in a chain": lambda n: n.chain(
        n.add.s(1, 2), immutable(n.group(n.add.s(1, 2), n.add.s(3, 4))), n.xsum.s()
    ),
    "chain of a chain": lambda n: n.chain(n.chain(n.add.s(1, 2), n.mul.s(3))),
    "chain of a group": lambda n: n.group([n.chain(n.group(n.add.s(1, 2), n.add.s(3, 4))), n.add.s(5, 6)]),
    "chunks at the end": lambda n: n.chain(n.add.s(1, 2), n.add.chunks([(1, 2), (3, 4)], 1).group()),
    "link on a group": lambda n: linked(n.group(n.add.s(1, 2), n.add.s(3, 4)), n.mul.s(2, 2)),
    "link_error on a chain of a chain": lambda n: n.chain(failing(n.add.s(1, 2) | n.mul.s(3), n.add.s(4))),
    "link_error on a chord whose body is a chain": lambda n: failing(
        n.chord([n.add.s(1, 2)], n.xsum.s() | n.mul.s(2)), n.add.s(4)
    ),
    "link_error on a chord of chords": lambda n: failing(
        n.chord([n.chord([n.add.s(1, 2)], n.xsum.s()), n.add.s(3, 4)], n.xsum.s()), n.add.s(4)
    ),
    "link_error on a body": lambda n: n.chord([n.add.s(1, 2)], failing(n.xsum.s(), n.add.s(4))),
    "link_error on a member": lambda n: n.chord([failing(n.add.s(1, 2), n.add.s(4))], n.xsum.s()),
    "clone": lambda n: n.chain(n.add.s(1, 2), n.group(n.mul.s(3), n.add.s(4)), n.xsum.s()).clone(),
    "map": lambda n: n.xsum.map([[1, 2], [3, 4]]),
    "starmap": lambda n: n.add.starmap([(1, 2), (3, 4)]),
    "starmap in a chain": lambda n: n.chain(n.add.starmap([(1, 2), (3, 4)]), n.xsum.s()),
    "chunks": lambda n: n.add.chunks([(1, 2), (3, 4), (5, 6)], 2),
    "chunks as a group": lambda n: n.add.chunks([(1, 2), (3, 4), (5, 6)], 2).group() | n.count.s(),
    "link": lambda n: linked(n.add.s(1, 2), n.mul.s(3)),
    "link on a chain": lambda n: linked(n.add.s(1, 2) | n.mul.s(3), n.add.s(4)),
    "link on a chord": lambda n: linked(n.chord([n.add.s(1, 2)], n.xsum.s()), n.add.s(4)),
    "link_error on a chain": lambda n: failing(n.add.s(1, 2) | n.mul.s(3), n.add.s(4)),
    "link_error on a group": lambda n: failing(n.group(n.add.s(1, 2), n.mul.s(3, 4)), n.add.s(4)),
    "link_error on a chord": lambda n: failing(n.chord([n.add.s(1, 2)], n.xsum.s()), n.add.s(4)),
    "link_error on a chain of a chord": lambda n: failing(
        n.chain(n.add.s(1, 2), n.group(n.mul.s(3), n.mul.s(4)), n.xsum.s(), n.add.s(1)), n.add.s(4)
    ),
    "from a dict": lambda n: n.signature(
        plain(n.chain(n.add.s(1, 2), n.group(n.mul.s(3), n.mul.s(4)), n.xsum.s()))
    ),
    "chord from a dict": lambda n: n.signature(plain(n.chord([n.add.s(1, 2), n.add.s(3, 4)], n.xsum.s()))),
    "group from a dict": lambda n: n.signature(plain(n.group(n.add.s(1, 2), n.add.s(3, 4)))),
    "maybe_signature": lambda n: n.maybe_signature(plain(n.group(n.add.s(1, 2), n.add.s(3, 4)) | n.xsum.s())),
}

CALLED: dict[str, tuple[Build, tuple[Any, ...]]] = {
    "chain with an argument": (lambda n: n.chain(n.add.s(2), n.mul.s(3)), (1,)),
    "group with an argument": (lambda n: n.group(n.add.s(2), n.mul.s(3), n.add.si(5, 5)), (1,)),
    "chord with an argument": (lambda n: n.group(n.add.s(2), n.mul.s(3)) | n.xsum.s(), (1,)),
    "chain of a group, with an argument": (
        lambda n: n.chain(n.group(n.add.s(2), n.mul.s(3)), n.xsum.s()),
        (1,),
    ),
    "group of chains with an argument": (lambda n: n.group(n.add.s(2) | n.mul.s(3), n.mul.s(3)), (1,)),
    "immutable chain head": (lambda n: n.chain(n.add.si(2, 3), n.mul.s(3)), (1,)),
}
"""Cases that are called with arguments."""

ALL = {**{name: (build, ()) for name, build in CASES.items()}, **CALLED}

DIFFERENT = {
    "group in a group": "Celery counts the members of the inner group from 0 again: two have one index",
    "group of an empty group": "Celery counts the empty group as a member when it numbers them",
    "chain of a group": "Celery gives the members of the inner group the id of the outer one",
    "link_error on a chain of a chain": "Celery loses the errbacks of a chain that is alone in another; "
    "qworker calls them",
    "link_error on a chord whose body is a chain": "Celery stores the errbacks with the chain, "
    "qworker with each step. The same ones are called",
    "chord of a group": "Celery sends the members of the inner group in reverse",
    "header that ends in a group": "in Celery the body waits for each member of that group; in "
    "qworker the group is a chord whose body collects the values, and the outer body gets them as one value",
}
"""Cases whose messages differ from Celery's, and why. Their values are the same."""


def linked(call: Any, callback: Any) -> Any:
    call.link(callback)
    return call


def failing(call: Any, errback: Any) -> Any:
    call.link_error(errback)
    return call


def immutable(call: Any) -> Any:
    call.set_immutable(True)
    return call


def plain(call: Any) -> Any:
    """A signature as plain data, as sent in messages."""
    return json.loads(json.dumps(call))


def namespace(app: Any, kinds: Any) -> SimpleNamespace:
    # With Celery, a shared task would belong to every later app of this process.
    task = partial(app.task, shared=False) if isinstance(app, celery.Celery) else app.task

    @task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @task(name="mul")
    def mul(x: int, y: int) -> int:
        return x * y

    @task(name="xsum")
    def xsum(values: list[int], start: int = 0) -> int:
        return sum(values, start)

    @task(name="count")
    def count(values: list[Any]) -> int:
        return len(values)

    return SimpleNamespace(
        app=app, add=add, mul=mul, xsum=xsum, count=count,
        **{name: getattr(kinds, name)
           for name in ("chain", "group", "chord", "signature", "maybe_signature", "xmap", "xstarmap",
           "chunks")}, )  # fmt: skip


class app_in_use:
    """Makes a Celery app the current one temporarily."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __enter__(self) -> None:
        from celery import _state

        self.before, self.default = _state._tls.current_app, _state.default_app
        _state._set_current_app(self.app)
        _state.set_default_app(self.app)

    def __exit__(self, *error: object) -> None:
        from celery import _state

        _state._set_current_app(self.before)
        _state.set_default_app(self.default)


def message(headers: Any, args: Any, kwargs: Any, embed: Any) -> dict[str, Any]:
    """The parts of a message that describe its place in a workflow."""
    return {
        "task": headers["task"],
        "id": Id(headers["id"]),
        "group": Id(headers.get("group")),
        "index": headers.get("group_index"),
        "args": [*args],
        "kwargs": comparable(kwargs),
        "link": anonymous(embed.get("callbacks")),
        "errbacks": anonymous(embed.get("errbacks")),
        "chain": [comparable(each) for each in reversed(embed.get("chain") or ())],
        "chord": comparable(embed.get("chord")),
    }


class Id(str):
    """The id of a call or group, which differs in each run."""

    def __new__(cls, value: Any) -> Any:
        return None if value is None else super().__new__(cls, value)


def comparable(value: Any) -> Any:
    """The parts of a signature, or of data with signatures in it, that must be equal for both libraries."""
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "task" not in value or "options" not in value:
        return {key: comparable(each) for key, each in value.items()}
    options = value["options"]
    kind = value.get("subtask_type")
    if kind == "chain":  # equivalent to its first step with the rest in the option chain
        first, *rest = value["kwargs"]["tasks"]
        value = {
            **first,
            "options": {**first["options"], "chain": [*(options.get("chain") or ()), *reversed(rest)]},
        }
        return comparable(value)
    if kind == "chord":  # its header may be a list or a group of that list
        header = value["kwargs"]["header"]
        header = header["kwargs"]["tasks"] if isinstance(header, dict) else header
        value = {**value, "kwargs": {"header": header, "body": value["kwargs"]["body"]}}
    return {
        "task": value["task"],
        "args": [*value["args"]],
        "kwargs": comparable(value["kwargs"]),
        "immutable": value["immutable"],
        "id": None if kind == "chord" else Id(options.get("task_id")),
        "queue": options.get("queue"),
        "chain": [comparable(each) for each in options.get("chain") or ()],
        "link": anonymous(options.get("link")),
        "errbacks": anonymous(options.get("link_error")),
    }


def anonymous(calls: Any) -> list[Any]:
    """Callbacks without ids, which are assigned when linking by qworker, and when sending by Celery."""
    return [{**comparable(each), "id": None} for each in calls or ()]


def renamed(value: Any, names: dict[str, int] | None = None) -> Any:
    """*value* with a number for each id, in order of appearance."""
    names = {} if names is None else names
    if isinstance(value, Id):
        return names.setdefault(value, len(names))
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    if isinstance(value, dict):
        return {key: renamed(each, names) for key, each in value.items()}
    return value
