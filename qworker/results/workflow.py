"""Workflow: all calls that hang together with one id, as far as the result store knows them.

Comes from:  ``qworker graph``, with an id.
Goes to:     the result store: one look for the calls that one look has told of; those before it one by one.
Thread:      any; a Survey is for one.

What is known of a workflow is spread out. A result names the call that made it and the calls that its task
made; some stores keep only the latter. An outline names all calls of a workflow that has joins. A saved group
names its members. What nothing of this tells is said to be unknown.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.errors import DamagedResult, NotSupported
from qworker.results import outline
from qworker.results.result import result_from_tuple
from qworker.results.tree import line, state_of_many

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.backends.base import Found

UNREADABLE = "UNREADABLE"
"""Told in place of a state, where what is stored is damaged or forged."""
MOST_GROUPS = 64
"""Of so many groups on the way down it is looked what follows them."""
ENDED = states.READY_STATES | {states.IGNORED, UNREADABLE}


class Step(NamedTuple):
    """A call, or a group of calls.

    - name: of the task; None of a group, and where it is not known.
    - state: of a group FAILURE when a member failed, SUCCESS when all returned, PENDING while nothing is
      known of any, else STARTED.
    - is_group: calls are its members then, else what its task called.
    - calls, then: ids; then is what gets its value, or is called after it.
    - node: its name as a node of the graph that it is a part of; None elsewhere.
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
    """What is known of it now.

    - steps: by id, each before those that come after it.
    - root: the id of the first. asked: the id that was asked for.
    - unknown: sentences that say what cannot be known.
    """

    asked: str
    root: str
    steps: dict[str, Step]
    unknown: tuple[str, ...]

    def counts(self) -> Counter[str]:
        """How many calls are in each state; groups do not count."""
        return Counter(step.state for step in self.steps.values() if not step.is_group)

    def line(self, first: str) -> Iterator[Step]:
        """The step *first* and those that follow it, each after the one before."""
        identity: str | None = first
        while identity is not None:
            step = self.steps[identity]
            yield step
            identity = step.then[0] if step.then else None


class _Node:
    """What is known of a step, while it is looked at."""

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
    """Looks at the workflow of *task_id*, again and again if need be: what has ended is looked at once."""

    def __init__(self, app: QWorker, task_id: str) -> None:
        self._app = app
        self._backend = app.backend
        self._asked = task_id
        self._ended: dict[str, Found] = {}
        self._outlines: dict[str, outline.Outline | None] = {}
        self._nodes: dict[str, _Node] = {}
        self._made_by: list[tuple[str, str]] = []
        self._lone: dict[str, str] = {}
        """A member of each group that no outline was found of."""
        self._unknown: list[str] = []

    def look(self) -> Workflow | None:
        """Return what is known now; None when nothing is stored of the id. Raises BackendError when the store
        does not answer, NotSupported when results are disabled."""
        self._nodes, self._made_by, self._lone, self._unknown = {}, [], {}, []
        root = self._climb()
        if root is None:
            return None
        self._descend()
        return self._made(root)

    # -- up --

    def _climb(self) -> str | None:
        """Find the first call of all, or None; take in what the outlines on the way tell."""
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
                self._unknown.append(f"what called {current} is known when that has ended")
            else:
                return None
            if found is None and meta is not None and not self._backend.keeps_parents and not known:
                self._unknown.append(
                    f"{self._backend.safe_url} does not keep which call made another: what came before "
                    f"{current} is not known"
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
        """The group that somebody saved with this id; None when there is none."""
        try:
            described = self._backend.get_group(identity)
            return described and result_from_tuple(described, self._app)
        except (DamagedResult, NotSupported, ValueError):
            return None

    # -- what is told of --

    def _node(self, identity: str, is_group: bool = False) -> _Node:
        node = self._nodes.get(identity)
        if node is None:
            node = self._nodes[identity] = _Node(is_group)
        return node

    def _take_line(self, steps: outline.Line) -> str:
        """Take in a line of an outline; return the id of its first step."""
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
        """Take in a graph. firsts: the id of what runs first in each node, by its name. after: the names of
        the nodes that each waits for."""
        for name, identity in firsts.items():
            node = self._node(identity)
            node.node, node.after = name, tuple(firsts[each] for each in after[name])

    def _take_result(self, result: Any) -> str:
        """Take in a result, with those before it that were not known yet; return the id of the first."""
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

    # -- down --

    def _descend(self) -> None:
        """Look at all that is known, and at what that tells of, until nothing new is told of."""
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
            return  # whatever wrote it, it names no call
        node.calls[self._take_result(result)] = None

    def _read(self, ids: Iterable[str]) -> dict[str, Found]:
        """What is stored of *ids*; of what has ended, as it was when that was seen first."""
        wanted = list(ids)
        unknown = [each for each in wanted if each not in self._ended]
        found = self._backend.read_many(unknown) if unknown else {}
        for identity, meta in found.items():
            if isinstance(meta, DamagedResult) or meta["status"] in states.READY_STATES:
                self._ended[identity] = meta
        return {**found, **{each: self._ended[each] for each in wanted if each in self._ended}}

    # -- what is made of it --

    def _made(self, root: str) -> Workflow:
        """Put each step in one place: after the one whose value it gets, else below the one that called it,
        or the group that it is a member of."""
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
        for identity in reversed(placed):  # what comes after it, or is below it, was placed later
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
        if any(_may_call(step, self._nodes[step.id]) for step in steps.values()):
            self._unknown.append("what a task calls is known when it has ended")
        return Workflow(self._asked, root, dict(reversed(steps.items())), tuple(self._unknown))


def _state(meta: Found | None) -> str:
    if isinstance(meta, DamagedResult):
        return UNREADABLE
    return states.PENDING if meta is None else str(meta["status"])


def _state_at_end(steps: dict[str, Step], first: str) -> str:
    """The state of the last of the line that begins with *first*."""
    step = steps[first]
    while step.then:
        step = steps[step.then[0]]
    return step.state


def _may_call(step: Step, node: _Node) -> bool:
    return not step.is_group and not step.then and step.state not in ENDED


def _lone(identity: str, group: str) -> str:
    return f"{identity} is a member of group {group}, of which nothing else is stored"


def _first(result: Any) -> str:
    """The id of what runs first in *result*."""
    *_, first = line(result)
    return str(first.id)
