"""Forked children reset the stores of their parent."""

from __future__ import annotations

import logging
import os

import pytest

from qworker.process.forked import forgetful


class Store:
    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.forgot = False

    def _after_fork(self) -> None:
        if self.broken:
            raise OSError("its socket was closed by another")
        self.forgot = True


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_failing_after_fork_does_not_affect_other_stores() -> None:
    stores = [Store(broken=number % 2 == 0) for number in range(8)]
    kept = forgetful()
    kept.update(stores)
    child = os.fork()
    if child == 0:
        logging.disable()
        os._exit(0 if all(store.forgot or store.broken for store in stores) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not any(store.forgot for store in stores)
