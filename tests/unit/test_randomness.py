"""Random pauses do not disturb programs that have seeded ``random``."""

from __future__ import annotations

import os
import random

from qworker.process.randomness import RANDOM


def test_numbers_of_a_seeded_program_stay_the_same() -> None:
    random.seed(1)
    expected = [random.random() for _ in range(3)]
    random.seed(1)
    found = []
    for _ in range(3):
        RANDOM.random()
        found.append(random.random())
    assert found == expected


def test_forked_children_pause_differently() -> None:
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, repr(RANDOM.random()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as file:
        os.close(write)
        assert file.read().decode() != repr(RANDOM.random())
