"""Lookout: one looks for the results that anybody in this process waits for.

Comes from:  ``sql.py``: a Bell for each thread that waits, and one for each event loop.
Goes to:     an Ear, where the server tells of results; and one look for all who wait, twice a second, or
             again and again with growing pauses where nothing is told. Whose result is there, their bell is
             rung.
Thread:      one of its own, from the first follow() until nobody has waited for a while; all else from any.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection
from typing import Protocol

from qworker.backends.base import POLL_SECONDS
from qworker.transports.sql.result_upserts import LOOK

logger = logging.getLogger(__name__)

QUICKEST, SLOWEST = 0.001, 0.25
"""Pauses between two looks where nothing is told."""
LINGER = 10.0
FIRST_RETRY, LAST_RETRY = 0.05, 30.0
"""Seconds after which a server that does not let us listen is asked again."""


class Ear(Protocol):
    """A connection on which the server tells of results; its methods raise what they like when it is
    broken."""

    def fileno(self) -> int: ...

    def heard(self) -> list[str]:
        """What was told since the last call, without waiting: ids, one a line, or LOOK."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: let go of it without a word to the server."""


class Signal:
    """Two sockets, by which one thread ends the sleep of another. Any thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """What can be read once it was given; -1 when it is closed."""
        return self._reader.fileno()

    def give(self) -> None:
        try:
            self._writer.send(b"!")
        except OSError:
            pass  # full: it is awake; closed: it has gone

    def sleep(self, seconds: float, other: int = -1) -> bool:
        """Sleep until it is given, the file *other* (-1: none) can be read, or so long; True when it was
        given."""
        ready = select.poll()
        for file in (self.fileno(), other):
            if file >= 0:
                ready.register(file, select.POLLIN)
        ready.poll(math.ceil(max(0.0, seconds) * 1000))
        try:
            return bool(self._reader.recv(4096))
        except OSError:
            return False

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Bell:
    """Of one who waits. Owner: one thread, but for ring()."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._signal = Signal()
        self._followed: set[str] = set()
        self._rung: set[str] = set()  # under the lookout's lock

    def fileno(self) -> int:
        """What becomes readable when it rings; -1 while it is closed."""
        return self._signal.fileno()

    def follow(self, ids: Collection[str]) -> list[str]:
        """Ring from now on for *ids* and no others; return those of them that are new.

        What is there already is not told of: look when this has returned.
        """
        wanted = set(ids)
        new = list(wanted - self._followed)
        if new and self.fileno() < 0:
            self._signal = Signal()
        self._lookout.follow(self, new, self._followed - wanted)
        self._followed = wanted
        return new

    def ring(self, task_id: str) -> None:
        """The lookout's, under its lock."""
        if not self._rung:
            self._signal.give()
        self._rung.add(task_id)

    def rung(self) -> list[str]:
        """The ids that it rang for since the last call, without waiting."""
        self._signal.sleep(0.0)
        return self._lookout.taken(self._rung)

    def wait(self, seconds: float) -> list[str]:
        """The ids that it rang for; where there are none, it waits for one up to so many seconds."""
        self._lookout.stay()
        if self._signal.sleep(seconds):
            return self._lookout.taken(self._rung)
        return []

    def close(self) -> None:
        """Safe to call twice; the next follow() opens it again."""
        self.follow(())
        self._signal.close()


class Lookout:
    """look: returns those of some ids that have ended. listen: makes an Ear; None: this server tells nothing.

    linger: seconds for which the thread stays when nobody waits any more.
    """

    def __init__(
        self,
        look: Callable[[Collection[str]], Collection[str]],
        listen: Callable[[], Ear] | None = None,
        linger: float = LINGER,
    ) -> None:
        self.look = look
        self.listen = listen
        self._linger = linger
        self._forget()
        _lookouts.add(self)

    def _forget(self) -> None:
        # Bells may be closed by the collector of garbage, in the midst of whatever this thread does.
        self._lock = threading.RLock()
        self._waiting: dict[str, tuple[weakref.ref[Bell], ...]] = {}  # under _lock
        """Whose owner was interrupted before he could close it, a bell goes by itself."""
        self._watch: Watch | None = None  # under _lock
        self._left_at = 0.0  # under _lock: when the last one went

    # -- those who wait --

    def bell(self) -> Bell:
        """A new bell, which rings for nothing yet."""
        return Bell(self)

    def follow(self, bell: Bell, new: Collection[str], old: Collection[str]) -> None:
        """Ring *bell* for *new* ids, and for *old* ones no more."""
        own = weakref.ref(bell)
        with self._lock:
            for task_id in new:
                self._waiting[task_id] = (*self._waiting.get(task_id, ()), own)
            for task_id in old:
                others = tuple(each for each in self._waiting.get(task_id, ()) if each is not own)
                if others:
                    self._waiting[task_id] = others
                else:
                    self._waiting.pop(task_id, None)
            if not self._waiting:
                self._left_at = time.monotonic()
            self.stay()
            if new and self._watch is not None and not self._watch.hears:
                self._watch.signal.give()  # it makes longer and longer pauses

    def taken(self, rung: set[str]) -> list[str]:
        """What is in *rung*, which is empty then."""
        with self._lock:
            ids = list(rung)
            rung.clear()
            return ids

    def stay(self) -> None:
        """Start the thread if it is not there, and anybody waits."""
        if self._watch is None or not self._watch.alive:
            with self._lock:
                if self._waiting and (self._watch is None or not self._watch.alive):
                    self._watch = Watch(self)
                    self._watch.start()

    # -- the watch --

    def needs(self, watch: Watch) -> bool:
        """Tell *watch* whether to stay. Once it is told no, a new one may have begun."""
        with self._lock:
            if self._watch is watch and not self._waiting and time.monotonic() - self._left_at > self._linger:
                self._watch = None
            return self._watch is watch

    def gone(self, watch: Watch) -> None:
        """The thread of *watch* ends, for whatever reason."""
        with self._lock:
            if self._watch is watch:
                self._watch = None

    def waited_for(self) -> list[str]:
        """All ids that anybody waits for."""
        with self._lock:
            for task_id, bells in list(self._waiting.items()):
                if all(bell() is None for bell in bells):
                    del self._waiting[task_id]
            return list(self._waiting)

    def ring(self, ids: Collection[str]) -> None:
        """Ring for those of *ids* that anybody waits for."""
        with self._lock:
            for task_id in ids:
                for reference in self._waiting.get(task_id, ()):
                    if (bell := reference()) is not None:
                        bell.ring(task_id)

    def close(self) -> None:
        """Let go of the connection; whoever waits goes on, with another."""
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    def forked(self) -> None:
        """In a forked child: the thread is not there, and its connection is the parent's."""
        watch = self._watch
        self._forget()
        if watch is not None:
            watch.abandon()


class Watch:
    """One life of the lookout's thread. hears: whether the server tells it of results."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self.signal = Signal()
        self.hears = False
        self._ear: Ear | None = None  # this thread only, as all below
        self._failures = 0
        self._listen_at = 0.0
        self._look_at = 0.0
        self._pause = QUICKEST
        self._thread = threading.Thread(target=self._run, name="qworker-results", daemon=True)

    @property
    def alive(self) -> bool:
        """False when it has not begun, too, because who was to start it was interrupted."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Once the lookout does not need it: wait until its connection is closed."""
        self.signal.give()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def abandon(self) -> None:
        """In a forked child."""
        self.signal.close()
        if self._ear is not None:
            self._ear.abandon()

    def _run(self) -> None:
        try:
            while self._lookout.needs(self):
                self.step(time.monotonic())
        finally:
            self._lookout.gone(self)
            self._hang_up()
            self.signal.close()

    def step(self, now: float) -> None:
        """Listen, look if it is time to, and sleep until there is something to do."""
        lookout = self._lookout
        if self._ear is None and lookout.listen is not None and now >= self._listen_at:
            self._begin_to_hear(lookout.listen)
        told = self._hear()
        lookout.ring(told)
        if LOOK in told or now >= self._look_at:
            self._look()
        if self._ear is not None:
            self.signal.sleep(self._look_at - time.monotonic(), self._ear.fileno())
        elif self.signal.sleep(self._pause):
            self._pause = QUICKEST
        else:
            self._pause = min(self._pause * 1.5, SLOWEST)

    def _look(self) -> None:
        """One look for all. Where nothing is told, the pauses are never shorter than the looks are long."""
        ids = self._lookout.waited_for()
        began = time.monotonic()
        try:
            ended = self._lookout.look(ids) if ids else ()
        except Exception as error:  # noqa: BLE001 - whatever the store says, who waits finds out by looking
            logger.debug("looking for results: %s", error)
            ended = ids
            self._pause = SLOWEST
        self._lookout.ring(ended)
        done = time.monotonic()
        self._pause = max(self._pause, min(done - began, SLOWEST))
        self._look_at = done + POLL_SECONDS if self._ear is not None else 0.0

    def _begin_to_hear(self, listen: Callable[[], Ear]) -> None:
        """Listen, and look once more: what was stored before was not told to us."""
        try:
            self._ear = listen()
        except Exception as error:  # noqa: BLE001 - until it works, results are found by looking
            delay = min(FIRST_RETRY * 2**self._failures, LAST_RETRY)
            logger.log(
                logging.INFO if self._failures == 3 else logging.DEBUG,
                "results are looked for, since the server does not let us listen: %s",
                error,
            )
            self._failures += 1
            self._listen_at = time.monotonic() + delay
            return
        self._failures = 0
        self._look_at = 0.0
        self.hears = True

    def _hear(self) -> list[str]:
        if self._ear is None:
            return []
        try:
            return [line for told in self._ear.heard() for line in told.split("\n")]
        except Exception as error:  # noqa: BLE001 - the connection is cut: until there is another we look
            logger.debug("listening for results: %s", error)
            self._hang_up()
            self._listen_at = time.monotonic() + FIRST_RETRY
            self._look_at = 0.0
            self._pause = QUICKEST
            return []

    def _hang_up(self) -> None:
        self.hears = False
        ear, self._ear = self._ear, None
        if ear is not None:
            try:
                ear.close()
            except Exception as error:  # noqa: BLE001 - it is of no more use, whatever it says
                logger.debug("closing the connection that listened: %s", error)


_lookouts: weakref.WeakSet[Lookout] = weakref.WeakSet()


def _forked() -> None:
    for lookout in list(_lookouts):
        lookout.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
