"""The result store in memory: forks, and size limits."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from qworker import QWorker
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.conf import Settings
from qworker.errors import EncodeError
from qworker.testing import FakeClock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing to fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_does_not_wait_for_a_lock_of_its_parent() -> None:
    backend = QWorker("x", broker="memory://", backend="cache+memory://", set_as_current=False).backend
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with backend.locked("x"):
            held.set()
            go.wait(30)

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(30)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        os._exit(0 if backend.get("unknown") is None else 1)
    go.set()
    holding.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_children_do_not_count_towards_the_result_size_limit() -> None:
    conf = Settings({"message_max_bytes": 2000}, environ={})
    backend = MemoryBackend("cache+memory://", conf, FakeClock())
    children = [((f"child-{number}", None), None) for number in range(1000)]
    backend.store("a", backend.meta("a", "SUCCESS", "a" * 1900, children=children))
    assert len((backend.get("a") or {})["children"]) == 1000
    with pytest.raises(EncodeError, match="the result takes"):
        backend.store("b", backend.meta("b", "SUCCESS", "a" * 2100, children=children))
