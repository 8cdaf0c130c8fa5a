"""Workflow: finds all calls of a workflow in the result store, given one id.

Comes from:  ``qworker graph``, with an id.
Goes to:     the result store: one read for all calls found by the previous read; predecessors one by one.
Thread:      any; a Survey belongs to one.

A result names the task that made the call, which some stores do not keep, and the calls that its task made.
An outline names all calls of a workflow with joins. A saved group names its members. Other data is reported
as unknown.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.contracts import App
from qworker.errors import DamagedResult, NotSupported
from qworker.results import outline
from qworker.results.result import result_from_tuple
from qworker.results.tree import line, state_of_many

if TYPE_CHECKING:
    from qworker.backends.base import Found

UNREADABLE = "UNREADABLE"
"""The reported state of damaged or forged results."""
MOST_GROUPS = 64
"""Maximum number of groups for which the calls after them are looked up."""
ENDED = states.READY_STATES | {states.IGNORED, UNREADABLE}


class Step(NamedTuple):
    """A call, or a group of calls.

    - name: of the task; None for a group, and if unknown.
    - state: as in ResultTree.
    - is_group: whether *calls* are the members of a group, or the calls of its task.
    - calls, then: ids; *then* of the calls that get its value, or follow it.
    - node: its name as a node of a graph; None otherwise.
    - after: the ids of the nodes that it waits for.
    """

    id: str
    name: str | None
    state: str
    is_group: bool
    calls: tuple[str, ...]
    then: tuple[str, ...]
    node: str | None = None
    after: tuple[str, ...] = ()


class Workflow(NamedTuple):
    """The known data about a workflow.

    - asked: the requested id.
    - root: the id of the first step.
    - steps: by id, each before its successors.
    - unknown: sentences about missing data.
    """

    asked: str
    root: str
    steps: dict[str, Step]
    unknown: tuple[str, ...]

    def counts(self) -> Counter[str]:
        """Return the number of calls in each state; groups do not count."""
        return Counter(step.state for step in self.steps.values() if not step.is_group)

    def line(self, first: str) -> Iterator[Step]:
        """Yield the step *first* and its successors in order."""
        identity: str | None = first
        while identity is not None:
            step = self.steps[identity]
            yield step
            identity = step.then[0] if step.then else None


class _Node:
    """A step while it is being examined."""

    __slots__ = ("after", "calls", "ignored", "is_group", "meta", "name", "node", "then")

    def __init__(self, is_group: bool) -> None:
        self.is_group = is_group
        self.name: str | None = None
        self.ignored = False
        self.calls: dict[str, None] = {}
        self.then: dict[str, None] = {}
        self.meta: Found | None = None
        self.node: str | None = None
        self.after: tuple[str, ...] = ()


class Survey:
    """Examines the workflow of *task_id*. look() may be called repeatedly; ended calls are read only once."""

    def __init__(self, app: App, task_id: str) -> None:
        self._app = app
        self._backend = app.backend
        self._asked = task_id
        self._ended: dict[str, Found] = {}
        self._outlines: dict[str, outline.Outline | None] = {}
        self._nodes: dict[str, _Node] = {}
        self._made_by: list[tuple[str, str]] = []
        self._lone: dict[str, str] = {}
        """A member of each group without an outline."""
        self._unknown: list[str] = []

    def look(self) -> Workflow | None:
        """Return the current state of the workflow; None if nothing is stored for the id. Raises BackendError
        if the store is unavailable, NotSupported if results are disabled."""
        self._nodes, self._made_by, self._lone, self._unknown = {}, [], {}, []
        root = self._climb()
        if root is None:
            return None
        self._descend()
        return self._made(root)

    # -- predecessors --

    def _climb(self) -> str | None:
        """Return the id of the first step, None if nothing is stored; read the outlines on the way."""
        top, current = self._asked, self._asked
        seen: set[str] = set()
        known = False
        while current not in seen:
            seen.add(current)
            meta = self._read([current]).get(current)
            found = self._outline(current)
            group = meta.get("group_id") if isinstance(meta, dict) else None
            if found is None and isinstance(group, str):
                found = self._outline(group)
            parent: Any = meta.get("parent_id") if isinstance(meta, dict) else None
            if found is not None:
                top, parent = self._take_line(found.line), found.parent or None
            elif meta is None and (saved := self._saved(current)) is not None:
                top = self._take_result(saved)
            elif meta is not None:
                self._node(current)
                top = current
                if isinstance(group, str):
                    self._lone[group] = current
            elif current != self._asked:
                self._node(current)
                top = current
                self._unknown.append(f"the caller of {current} is not known until {current} has ended")
            else:
                return None
            if found is None and meta is not None and not self._backend.keeps_parents and not known:
                self._unknown.append(
                    f"{self._backend.safe_url} does not store which call made another: the calls before "
                    f"{current} are not known"
                )
            known = True
            if not isinstance(parent, str) or parent in seen:
                return top
            self._made_by.append((parent, top))
            current = parent
        return top

    def _outline(self, identity: str) -> outline.Outline | None:
        if self._outlines.get(identity) is None:
            self._outlines[identity] = outline.read(self._backend, identity)
        return self._outlines[identity]

    def _saved(self, identity: str) -> Any:
        """Return the group saved with this id; None if there is none."""
        try:
            described = self._backend.get_group(identity)
            return described and result_from_tuple(described, self._app)
        except (DamagedResult, NotSupported, ValueError):
            return None

    # -- collecting steps --

    def _node(self, identity: str, is_group: bool = False) -> _Node:
        node = self._nodes.get(identity)
        if node is None:
            node = self._nodes[identity] = _Node(is_group)
        return node

    def _take_line(self, steps: outline.Line) -> str:
        """Add a line of an outline; return the id of its first step."""
        waiting = deque([steps])
        while waiting:
            one = waiting.popleft()
            for identity, name, *more in one:
                node = self._node(identity, is_group=name is None)
                node.name = name
                if name is None:
                    firsts = [inner[0][0] for inner in more[0]]
                    node.calls = dict.fromkeys(firsts)
                    waiting += more[0]
                    if more[1:]:
                        self._take_nodes(dict(zip(more[1], firsts, strict=True)), more[1])
                else:
                    node.ignored = bool(more)
            for before, after in pairwise(one):
                self._node(before[0]).then[after[0]] = None
        return str(steps[0][0])

    def _take_nodes(self, firsts: Mapping[str, str], after: Mapping[str, Iterable[str]]) -> None:
        """Add a graph. firsts: the id of the first call of each node, by name. after: the names of the nodes
        that each waits for."""
        for name, identity in firsts.items():
            node = self._node(identity)
            node.node, node.after = name, tuple(firsts[each] for each in after[name])

    def _take_result(self, result: Any) -> str:
        """Add a result and its predecessors that were not added yet; return the id of the first."""
        waiting, first = deque([result]), None
        while waiting:
            before: list[Any] = []
            for each in line(waiting.popleft()):
                if before and each.id in self._nodes:
                    break
                before.append(each)
            before.reverse()
            for each in before:
                node = self._node(each.id, is_group=not each._is_single)
                if not each._is_single and not node.calls:
                    node.calls = dict.fromkeys(_first(member) for member in each.results)
                    waiting += each.results
            for one, other in pairwise(before):
                self._node(one.id).then[other.id] = None
            first = first or before[0].id
        return str(first)

    # -- successors --

    def _descend(self) -> None:
        """Read all known steps and the steps that they name, until there are no new ones."""
        looked, groups = 0, 0
        while new := list(islice(self._nodes, looked, None)):
            looked += len(new)
            ids = [each for each in new if not self._nodes[each].is_group]
            for identity in new:
                node = self._nodes[identity]
                if node.is_group and not node.then and groups < MOST_GROUPS:
                    groups += 1
                    if (kept := self._outline(identity)) is not None:
                        self._take_line(kept.line)
            found = self._read([each for each in ids if not self._nodes[each].ignored])
            for identity in ids:
                node = self._nodes[identity]
                node.meta = meta = found.get(identity)
                if isinstance(meta, dict):
                    node.name = meta.get("name") or node.name
                    for child in meta.get("children") or ():
                        self._take_child(node, child)

    def _take_child(self, node: _Node, child: Any) -> None:
        try:
            result = result_from_tuple(child, self._app)
        except ValueError:
            return  # invalid data
        node.calls[self._take_result(result)] = None

    def _read(self, ids: Iterable[str]) -> dict[str, Found]:
        """Return the stored results of *ids*; ended ones are read only once."""
        wanted = list(ids)
        unknown = [each for each in wanted if each not in self._ended]
        found = self._backend.read_many(unknown) if unknown else {}
        for identity, meta in found.items():
            if isinstance(meta, DamagedResult) or meta["status"] in states.READY_STATES:
                self._ended[identity] = meta
        return {**found, **{each: self._ended[each] for each in wanted if each in self._ended}}

    # -- the result --

    def _made(self, root: str) -> Workflow:
        """Return the workflow, with each step in one place: after the step whose value it gets, else below
        its caller or group."""
        placed: dict[str, tuple[list[str], list[str]]] = {root: ([], [])}
        waiting = deque([root])

        def place(identities: Iterable[str]) -> list[str]:
            new = [each for each in dict.fromkeys(identities) if each not in placed]
            placed.update((each, ([], [])) for each in new)
            waiting.extend(new)
            return new

        def spread() -> None:
            while waiting:
                identity = waiting.popleft()
                node = self._nodes[identity]
                placed[identity] = (place(node.then), place(node.calls))

        spread()
        for maker, made in reversed(self._made_by):
            placed[maker][1].extend(place([made]))
            spread()
        steps: dict[str, Step] = {}
        for identity in reversed(placed):  # successors and descendants were placed later
            then, calls = placed[identity]
            node = self._nodes[identity]
            if node.is_group:
                state = state_of_many(_state_at_end(steps, each) for each in calls)
            elif node.ignored:
                state = states.IGNORED
            else:
                state = _state(node.meta)
            steps[identity] = Step(
                identity, node.name, state, node.is_group, tuple(calls), tuple(then), node.node, node.after
            )
        for group, member in self._lone.items():
            if group not in self._nodes:
                self._unknown.append(_lone(member, group))
        if any(_may_call(step) for step in steps.values()):
            self._unknown.append("the calls made by a task are not known until it has ended")
        return Workflow(self._asked, root, dict(reversed(steps.items())), tuple(self._unknown))


def _state(meta: Found | None) -> str:
    if isinstance(meta, DamagedResult):
        return UNREADABLE
    return states.PENDING if meta is None else str(meta["status"])


def _state_at_end(steps: dict[str, Step], first: str) -> str:
    """Return the state of the last step of the line that begins with *first*."""
    step = steps[first]
    while step.then:
        step = steps[step.then[0]]
    return step.state


def _may_call(step: Step) -> bool:
    return not step.is_group and not step.then and step.state not in ENDED


def _lone(identity: str, group: str) -> str:
    return f"{identity} is a member of group {group}, but nothing else of the group is stored"


def _first(result: Any) -> str:
    """Return the id of the first call in *result*."""
    *_, first = line(result)
    return str(first.id)
