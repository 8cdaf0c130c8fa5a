"""Mailbox: how a thread asks another one to do something.

Comes from:  any thread (post).
Goes to:     the one thread that owns it (take).
Thread:      post from any, take from the owner. A deque's append and popleft are atomic; no lock is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """wake: called when a letter comes while the owner has no timer set, and at every *crowd* letters."""

    def __init__(self, wake: Callable[[], None], crowd: int = 64) -> None:
        self._letters: deque[T] = deque()
        self._wake = wake
        self._crowd = crowd
        self.armed = False
        """Set by the owner: it will look within milliseconds anyway, so that a letter need not wake it."""

    def post(self, letter: T) -> None:
        """Leave a letter and wake the owner."""
        self._letters.append(letter)
        self._wake()

    def post_many(self, letters: Iterable[T], at_once: bool = False) -> None:
        """Leave letters that can wait as long as the owner's timer. at_once: they cannot."""
        before = len(self._letters)
        self._letters.extend(letters)
        after = len(self._letters)
        if after > before and (at_once or not self.armed or before // self._crowd != after // self._crowd):
            self._wake()

    def take(self) -> list[T]:
        """All letters, oldest first; [] when there is none."""
        letters = []
        while self._letters:
            letters.append(self._letters.popleft())
        return letters

    def __len__(self) -> int:
        return len(self._letters)
