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
    """wake: called when the owner may be resting, and again at every *crowd* letters."""

    def __init__(self, wake: Callable[[], None], crowd: int = 64) -> None:
        self._letters: deque[T] = deque()
        self._wake = wake
        self._crowd = crowd

    def post(self, letter: T) -> None:
        self.post_many((letter,))

    def post_many(self, letters: Iterable[T]) -> None:
        before = len(self._letters)
        self._letters.extend(letters)
        if before == 0 or before // self._crowd != len(self._letters) // self._crowd:
            self._wake()

    def take(self) -> list[T]:
        """All letters, oldest first; [] when there is none."""
        letters = []
        while self._letters:
            letters.append(self._letters.popleft())
        return letters

    def __len__(self) -> int:
        return len(self._letters)
