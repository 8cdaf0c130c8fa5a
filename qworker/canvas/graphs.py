"""Graphs: named calls that may each wait for several others.

Comes from:  ``graph({"a": add.s(1, 1), "b": double.s()}, after={"b": {"x": "a"}})``, or the dict of a graph.
Goes to:     the plan, which publishes the nodes without dependencies, and opens a join for every other.
Thread:      any.

Dependencies are stored beside the nodes and not in them, because a signature has Celery's format and may be
in several graphs. Values are passed as keyword arguments, so a task remains an ordinary function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Unpack, cast

from qworker import states
from qworker.canvas.groups import OF_THE_GROUP, with_links
from qworker.canvas.mapping import chunks
from qworker.canvas.membership import MOST
from qworker.canvas.plain import timed
from qworker.canvas.signatures import GRAPH, Frozen, Signature, member, signature
from qworker.contracts import App
from qworker.errors import PublishError
from qworker.message.marks import over
from qworker.naming import close_matches
from qworker.naming import task_id as new_id
from qworker.results.graph_result import GraphResult
from qworker.results.result import AsyncResult
from qworker.safe_repr import safe_repr

if TYPE_CHECKING:
    from qworker import QWorker
    from qworker.canvas.options import SignatureOptions

MAX_DEPENDANTS = MOST - 1
"""Maximum number of nodes that wait for one node. Its message names the join of each of them, and that of the
whole graph."""
MAX_NAME = 100

Wanted = Mapping[str, Mapping[str, str]]
"""For each node with dependencies: its arguments, and the node that each gets its value from."""


class graph(Signature):
    """Calls that may each wait for several others, and get their values as keyword arguments::

        graph({"x": add.s(1, 1), "y": add.s(2, 2), "sum": add.s()}, after={"sum": ["x", "y"]})

    Calling it returns a GraphResult: the results of the nodes by name. A node may be any signature or
    workflow; a group is allowed where no node needs its value. Arguments given at the call go to the nodes
    without dependencies; options go to all.

    In a chain, a chord or another graph it is one step, whose value is a mapping from node names to values.
    """

    __module__ = "qworker"

    __slots__ = ()

    def __init__(
        self,
        nodes: Mapping[str, Any],
        after: Mapping[str, Any] | None = None,
        *,
        always: Iterable[str] = (),
        app: App | None = None,
        **options: Unpack[SignatureOptions],
    ) -> None:
        """
        - nodes: a signature for each name. Names are Python identifiers.
        - after: for each node with dependencies, their names; the value of each is passed as the keyword
          argument of the same name. Or a mapping from arguments to node names. An immutable signature waits
          too, but gets no value.
        - always: names of nodes that run even if a dependency fails; they get None as its value. Any other
          node fails with the error of its dependency.
        - options: as for apply_async, for every node.

        Raises PublishError for an invalid graph, such as a cycle or an unknown name.
        """
        members = {name: _read(name, each, app) for name, each in _named(nodes).items()}
        wanted = _wanted(members, after)
        _refuse_circles(wanted)
        fields = {"nodes": members, "after": wanted, "always": _always(members, always)}
        known = app or next((each._app for each in members.values() if each._app is not None), None)
        super().__init__(GRAPH, (), fields, options, app=known)
        self["subtask_type"] = "graph"

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: App | None) -> Any:
        """from_dict() for checked fields."""
        kwargs = fields["kwargs"]
        nodes = {name: member(each, app) for name, each in kwargs["nodes"].items()}
        made = cls(nodes, kwargs.get("after"), always=kwargs.get("always") or (), app=app)
        if (gathered := kwargs.get("gathered")) is not None:
            made["kwargs"]["gathered"] = member(gathered, app)
        made["options"] = dict(fields.get("options") or {})
        made["immutable"] = bool(fields.get("immutable"))
        return made

    @staticmethod
    def members_in(kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the signatures in the dict of a graph. Raises PublishError when it has no named nodes."""
        found, gathered = list(_named(kwargs.get("nodes")).values()), kwargs.get("gathered")
        return found if gathered is None else [*found, gathered]

    @property
    def nodes(self) -> dict[str, Any]:
        """The signature of each node, by name."""
        return self["kwargs"]["nodes"]  # type: ignore[no-any-return]

    @property
    def after(self) -> Wanted:
        """For each node with dependencies: its arguments, and the node that each gets its value from."""
        return self["kwargs"]["after"]  # type: ignore[no-any-return]

    @property
    def always(self) -> list[str]:
        """The nodes that run even if a dependency has failed."""
        return self["kwargs"]["always"]  # type: ignore[no-any-return]

    @property
    def gathered(self) -> Signature | None:
        """The call that passes on the values of all nodes; None when nothing follows."""
        return self["kwargs"].get("gathered")  # type: ignore[no-any-return]

    @property
    def app(self) -> QWorker:
        """The app that will make the calls: its own, or that of its first node."""
        return cast("QWorker", self._app or next(iter(self.nodes.values())).app)

    def levels(self) -> dict[str, int]:
        """Return the nodes in an order in which they may run, with the length of the longest path to each."""
        return _levels(self.nodes, self.after)

    def wanted(self) -> Iterable[str]:
        """Return the nodes whose values other nodes get."""
        if self.gathered is not None:
            return self.nodes
        return {
            each
            for name, wanted in self.after.items()
            if not self.nodes[name]["immutable"]
            for each in wanted.values()
        }

    def _copy(self) -> Any:
        copy = super()._copy()
        copy["kwargs"]["nodes"] = dict(self.nodes)
        return copy

    def _put(self, nodes: Mapping[str, Any]) -> None:
        self["kwargs"]["nodes"] = {**self.nodes, **nodes}

    def add(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepend *args* to those of the nodes without dependencies, merge *kwargs* into theirs, and
        *options* into the graph's."""
        if (args or kwargs) and not self["immutable"]:
            self._put(
                {name: self.nodes[name].clone(args, kwargs) for name in self.nodes if name not in self.after}
            )
        self["options"].update(over(options or {}, self["options"]))

    def link(self, callback: Any) -> Any:
        """Call *callback* with the values. Raises TypeError for a graph on its own: use a chain."""
        if self.gathered is not None:
            self["kwargs"]["gathered"] = gathered = self.gathered.clone()
            return gathered.link(callback)
        raise TypeError("a graph takes no callback: make a chain of it, graph | callback")

    def link_error(self, errback: Any) -> Any:
        """Call *errback* for each node that fails. It is not called for nodes that do not run because of a
        failed dependency."""
        self._put({name: each.clone() for name, each in self.nodes.items()})
        for each in self.nodes.values():
            each.link_error(errback)
        return errback

    def frozen(self, id: str | None = None, joined: bool = False, ids: Callable[[], str] = new_id) -> Frozen:
        """Return a copy with assigned ids; see Signature. joined: one more call collects the values of all
        nodes."""
        copy = self._copy()
        if joined:
            copy["kwargs"]["gathered"] = self.gathered or Signature(GRAPH, app=self._app)
        copy = with_links(copy)
        results: dict[str, Any] = {}
        for name, each in list(copy.nodes.items()):
            frozen = each.frozen(None, True, ids)
            frozen.last._app = frozen.last._app or self._app
            copy.nodes[name], results[name] = frozen.step, frozen.last
        copy["options"] = timed(copy["options"])
        identity = copy["options"].setdefault("task_id", (None if joined else id) or ids())
        result = GraphResult(identity, results, None, self._app)
        if not joined:
            return Frozen(copy, result, result)
        gathering = copy.gathered.frozen(id, True, ids)
        copy["kwargs"]["gathered"] = gathering.step
        gathering.last.parent = result
        return Frozen(copy, result, gathering.last)

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> GraphResult:
        """Call the nodes without dependencies, in one round trip; see Task.apply_async for *options*, which
        apply to all nodes, except countdown and eta.

        Raises NotSupported when the result store cannot keep joins, TypeError for ``link``.
        """
        result: GraphResult = self.app.send_workflow(self, args, kwargs, options)
        return result

    def delay(self, *args: Any, **kwargs: Any) -> GraphResult:  # type: ignore[override]
        """Call the nodes without dependencies, with *args* prepended and *kwargs* merged."""
        return self.apply_async(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> GraphResult:
        """Call the nodes without dependencies, with *args* prepended and *kwargs* merged."""
        return self.apply_async(args, kwargs)

    def apply(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> GraphResult:
        """Run all nodes in this process, one after another, as a worker would; see Task.apply."""
        own = {name: value for name, value in self["options"].items() if name not in OF_THE_GROUP}
        given = {**own, **{name: options[name] for name in options if name not in OF_THE_GROUP}}
        flow = with_links(self.clone(args, kwargs), options)
        errors: dict[str, BaseException] = {}
        results: dict[str, Any] = {}
        for name in flow.levels():
            wanted = flow.after.get(name, {})
            failed = next((errors[each] for each in wanted.values() if each in errors), None)
            if failed is not None and name not in self.always:
                results[name] = self._failed(failed)
                errors[name] = failed
                continue
            values = {
                argument: None if each in errors else results[each].get() for argument, each in wanted.items()
            }
            try:
                results[name] = ended = flow.nodes[name].apply((), values, **given)
                ended.get()
            except Exception as error:
                if self.app.conf.task_eager_propagates:
                    raise
                errors[name] = error
                results[name] = results.get(name) or self._failed(error)
        identity = options.get("task_id") or self["options"].get("task_id") or new_id()
        return GraphResult(identity, {name: results[name] for name in self.nodes}, None, self._app)

    def _failed(self, error: BaseException) -> AsyncResult[Any]:
        """Return the result of a node that did not run because of *error*."""
        result: AsyncResult[Any] = AsyncResult(new_id(), app=self.app)
        result.keep({"status": states.FAILURE, "result": error, "traceback": None})
        return result

    def __repr__(self) -> str:
        return f"graph({self.nodes!r:.1000}, after={dict(self.after)!r:.1000})"


def _named(nodes: Any) -> Mapping[str, Any]:
    """Return *nodes* after checking their names. Raises PublishError."""
    if not isinstance(nodes, Mapping) or not nodes:
        raise PublishError(
            f"a graph cannot be made of {safe_repr(nodes, 100)}: expected signatures by name, "
            "{'name': task.s(…)}"
        )
    for name in nodes:
        _check_name(name, "a node")
    return nodes


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or len(name) > MAX_NAME or not name.isidentifier() or iskeyword(name):
        raise PublishError(
            f"{what} of a graph is named {safe_repr(name, 100)}: a name must be a Python identifier of at "
            f"most {MAX_NAME} characters, because it is also the name of an argument"
        )


def _read(name: str, value: Any, app: App | None) -> Any:
    if not isinstance(value, Mapping):
        raise PublishError(
            f"node {name} of a graph is {safe_repr(value, 100)}, not a signature: task.s(…) makes one"
        )
    made = value if isinstance(value, Signature) else signature(value, app=app)
    return made.group() if isinstance(made, chunks) else made


def _wanted(nodes: Mapping[str, Any], after: Any) -> dict[str, dict[str, str]]:
    """Return the dependencies in *after*, which is given by the user. Raises PublishError."""
    if after is None:
        return {}
    if not isinstance(after, Mapping):
        raise PublishError(
            f"after={safe_repr(after, 100)} in a graph: expected for each node the names of those for which "
            "it waits, {'node': ['other', …]}"
        )
    found: dict[str, dict[str, str]] = {}
    dependants: dict[str, int] = defaultdict(int)
    for name, given in after.items():
        _check_known(nodes, name, "after")
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, Mapping | list | tuple | set | frozenset):
            raise PublishError(
                f"after={{{name!r}: {safe_repr(given, 100)}}} in a graph: expected a list of names, or the "
                "name of a node for each argument"
            )
        pairs = list(given.items()) if isinstance(given, Mapping) else [(each, each) for each in given]
        for argument, each in pairs:
            _check_known(nodes, each, f"after[{name!r}]")
            _check_name(argument, f"an argument of node {name}")
            dependants[each] += 1
        if pairs:
            found[name] = dict(pairs)
    for name, number in dependants.items():
        if number > MAX_DEPENDANTS:
            raise PublishError(
                f"{number} nodes of a graph wait for {name}, more than {MAX_DEPENDANTS}: let some wait for "
                "another node that passes its value on, or combine them into one node, a group"
            )
    return found


def _always(nodes: Mapping[str, Any], always: Any) -> list[str]:
    names = [always] if isinstance(always, str) else always
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise PublishError(f"always={safe_repr(always, 100)} in a graph: expected a list of names of nodes")
    names = list(names)
    for name in names:
        _check_known(nodes, name, "always")
    return names


def _check_known(nodes: Mapping[str, Any], name: Any, where: str) -> None:
    if isinstance(name, str) and name in nodes:
        return
    guesses = (
        close_matches(name, list(nodes)[:1000]) if isinstance(name, str) and len(name) <= MAX_NAME else []
    )
    hint = f" Did you mean {' or '.join(guesses)}?" if guesses else ""
    raise PublishError(f"{where} in a graph names {safe_repr(name, 100)}, but there is no such node.{hint}")


def _levels(nodes: Iterable[str], after: Wanted) -> dict[str, int]:
    """Return the nodes in an order in which they may run, each with its level; nodes in cycles are left
    out."""
    left = {name: set(wanted.values()) for name, wanted in after.items()}
    dependants: dict[str, list[str]] = defaultdict(list)
    for name, wanted in left.items():
        for each in wanted:
            dependants[each].append(name)
    level = dict.fromkeys((name for name in nodes if name not in left), 0)
    waiting = list(level)
    for name in waiting:  # grows in the loop
        for each in dependants[name]:
            left[each].discard(name)
            if not left[each]:
                level[each] = level[name] + 1
                waiting.append(each)
    return level


def _refuse_circles(after: Wanted) -> None:
    """Raise PublishError for a cycle."""
    names = {name: None for each, wanted in after.items() for name in (each, *wanted.values())}
    there = _levels(names, after)
    around = next((name for name in names if name not in there), None)
    if around is None:
        return
    way: dict[str, None] = {}
    while around not in way:
        way[around] = None
        around = next(each for each in after[around].values() if each not in there)
    circle = [*list(way)[list(way).index(around) :], around]
    shown = circle if len(circle) <= 10 else [*circle[:9], "…", around]
    raise PublishError(
        f"nodes of a graph wait for each other in a cycle: {' after '.join(shown)}. Take one of these out "
        "of after="
    )
