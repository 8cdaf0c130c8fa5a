"""figures: counts from signals and metrics, which must match what ran in a world.

Comes from:  signals of all processes of the world, and its workers' counters.
Goes to:     ``checks``.
Thread:      the world's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from qworker import signals, states
from qworker.components.status.counters import Counters
from qworker.errors import Reject, WorkerLost
from qworker.message.context import message_headers
from qworker.message.marks import FAILED
from tests.simulation.world import Killed
from tests.support.flows import OWN, Call, is_line

if TYPE_CHECKING:
    from tests.simulation.nodes import Asked
    from tests.simulation.program import Record

TOLD = {states.SUCCESS: "success", states.FAILURE: "failure", states.RETRY: "retry"}
"""The names in metrics of the states that have a signal."""
UNTOLD = ("hard", "dies", "lost", "requeue")
"""Ends for which ``task_failure`` is sent in the worker, without the call, or not at all."""
Which = tuple[str, int]
"""An order's name, and the number of a call in its flow."""


class Figures:
    """began, ended: how many ``task_prerun`` and ``task_postrun`` were sent for each call; ended also by
    state."""

    def __init__(self) -> None:
        self.began: Counter[Which] = Counter()
        self.ended: Counter[tuple[Which, str]] = Counter()
        self.told: Counter[tuple[Which, str]] = Counter()
        """How many signals of each state were sent for each call."""
        self.kept = 0
        """How many failures have to be kept, if failed tasks are: not expected ones, and no dead letters.
        A body that fails with the rejection of its header does not become one."""
        self.revoked: set[str] = set()
        """The ids for which ``task_revoked`` was sent."""
        self.rejected = 0
        """How many ``task_rejected`` were sent."""
        self.eager: Counter[str] = Counter()
        """By state, calls that ran in their caller, which metrics do not count."""
        self.counters: list[Counters] = []
        """One for each worker."""

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Count signals within the block."""
        with ExitStack() as stack:
            for signal, receiver in (
                (signals.task_prerun, self._begins),
                (signals.task_postrun, self._ends),
                (signals.task_success, self._tells(states.SUCCESS)),
                (signals.task_failure, self._tells(states.FAILURE)),
                (signals.task_retry, self._tells(states.RETRY)),
                (signals.task_failure, self._keeps),
                (signals.task_revoked, self._revokes),
                (signals.task_rejected, self._rejects),
            ):
                signal.connect(receiver)
                stack.callback(signal.disconnect, receiver)
            yield

    def _begins(self, kwargs: Any, **_: Any) -> None:
        self.began.update(_call(kwargs))

    def _ends(self, task: Any, kwargs: Any, state: str, **_: Any) -> None:
        self.ended.update((call, state) for call in _call(kwargs))
        self.eager[state] += task.request.is_eager and bool(_call(kwargs))

    def _keeps(self, sender: Any, exception: Any, args: Any, **_: Any) -> None:
        dies = args is None and isinstance(exception, WorkerLost)  # else it fails by the death of another
        again = dies and sender.reject_on_worker_lost
        rejects = isinstance(exception, Reject) and FAILED not in message_headers(sender.request)
        excepted = rejects or isinstance(exception, (*sender.throws, Killed))
        to_keep = sender.acks_on_failure_or_timeout and not sender.request.is_eager
        self.kept += to_keep and not (again or excepted)

    def _revokes(self, request: Any, **_: Any) -> None:
        self.revoked.add(request.id)

    def _rejects(self, **_: Any) -> None:
        self.rejected += 1

    def _tells(self, state: str) -> Callable[..., None]:
        def receiver(sender: Any, **_: Any) -> None:
            self.told.update((call, state) for call in _call(sender.request.kwargs))

        return receiver

    def counted(self, how: str) -> int:
        """Return how many calls of flows ended as *how*, by the workers' metrics."""
        return sum(
            count for each in self.counters for (name, end), count in each.ends().items()
            if end == how and name in ("call", "acall", *OWN)
        )  # fmt: skip


def wrong(figures: Figures, asked: Sequence[Asked], record: Record, joins: bool) -> Iterator[str]:
    """Yield figures of a run without faults that do not match. joins: whether results are stored, for
    groups."""
    killed = perhaps = terminated = 0
    ends: dict[Any, dict[str, int]] = defaultdict(dict)
    for (which, state), count in figures.ended.items():
        ends[which][state] = count
    for each in asked:
        flow, ran = record.flow(each.name), record.ran(each.name)
        if each.order.terminate:  # perhaps when it had stored its result and told of its end
            terminated += sum(ran.values())
        for number, part in flow.parts.items() if flow else ():
            if not isinstance(part, Call):
                continue
            call = each.name, number
            ended = ends[call]
            told = {state: figures.told[call, state] for state in TOLD if figures.told[call, state]}
            began = figures.began[call]
            unrun = began - ran[number]  # a body whose header failed fails without running
            if not 0 <= unrun <= ended.get(states.FAILURE, 0) or sum(ended.values()) != began:
                of_these = f"of which signals tell {began}, {ended}"
                yield f"{each.name}: call {number} ran {ran[number]} times, {of_these}"
            want = Counter(
                {
                    states.FAILURE if state == states.REJECTED else state: count
                    for state, count in ended.items()
                }
            )
            for hook, count in (("on_retry", figures.told[call, states.RETRY]), ("before_start", began)):
                if record.hooked and record.hooked[hook, *call] != count:
                    yield f"{each.name}: {hook}() of {number} was called {record.hooked[hook, *call]} times"
            if part.does not in UNTOLD and told != {state: want[state] for state in TOLD if want[state]}:
                yield f"{each.name}: {number} has ended as {ended}, and signals tell {told}"
            if part.does in ("hard", "dies", "lost") and not part.fails:  # metrics do not count killed tasks
                if joins or part.calls is None or is_line(part.calls):
                    killed += ran[number]
                else:  # unless it has failed before, because it calls what needs joins
                    perhaps += ran[number]
    for state, how in TOLD.items():
        count = sum(count for (_, end), count in figures.ended.items() if end == state)
        count -= figures.eager[state] + (killed if state == states.FAILURE else 0)
        fewer = terminated + (perhaps if state == states.FAILURE else 0)
        if not count - fewer <= figures.counted(how) <= count:
            yield f"metrics count {figures.counted(how)} as {how}, and signals {count}"


def _call(kwargs: Any) -> list[Which]:
    """Return the call of a flow with *kwargs* in a list; [] for anything else."""
    known = isinstance(kwargs, dict) and {"flow", "number", "fails"} <= kwargs.keys()
    return [(kwargs["flow"], kwargs["number"])] if known else []
