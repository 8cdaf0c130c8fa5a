"""Scripts that other processes run during a test.

Comes from:  ``process``.
Goes to:     the place, which each process creates; the test, by lines of standard input and output.
Thread:      the main thread of the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from qworker.errors import LeaseLost
from qworker.testing.contract.messages import message
from qworker.testing.contract.parts import present
from qworker.testing.contract.place import Place, mark
from qworker.transports.lease import Ack, Leased

Script = Callable[[Place], None]


def say(*words: object) -> None:
    """Send a line to the test."""
    print(*words, flush=True)


def hear() -> str:
    """Return the test's next line; "" when the test has ended."""
    return sys.stdin.readline().strip()


def hold(place: Place) -> None:
    """Lease all messages of q for the given seconds. Then acknowledge them for each line of the test."""
    store = place.open(lease_seconds=float(hear()))
    generation = store.consumer.register("victim@test", ["q"], 1)
    messages = store.consumer.lease(["q"], 100).messages
    mark(store, *[leased.tag for leased in messages if leased.headers.startswith("running")])
    say(len(messages))
    while hear():
        try:
            say("lost", *store.consumer.settle(generation, [Ack(leased.tag) for leased in messages]))
            store.consumer.extend()
            say("extended")
        except LeaseLost:
            say("LeaseLost")


def hold_and_fork(place: Place) -> None:
    """Lease a message, and fork a child that survives when this process is killed."""
    store = place.open()
    store.consumer.register("victim@test", ["q"], 1)
    taken = store.consumer.lease(["q"], 1).messages
    if os.fork() == 0:
        refused = ""
        try:
            store.consumer.settle(1, [Ack(leased.tag) for leased in taken])
        except LeaseLost:
            refused = "refused"
        say("child", os.getpid(), refused)
        hear()
        os._exit(0)
    os.wait()


def hold_in_parent_and_child(place: Place) -> None:
    """Lease and acknowledge a message in the parent, and another one in a child."""
    store = place.open()
    generation = store.consumer.register("parent@test", ["q"], 1)
    (taken,) = store.consumer.lease(["q"], 1).messages
    pid = os.fork()
    if pid == 0:
        child = store.consumer.register("child@test", ["q"], 1)
        (mine,) = store.consumer.lease(["q"], 1).messages
        lost = store.consumer.settle(child, [Ack(mine.tag), Ack(taken.tag)])
        store.consumer.deregister()
        os._exit(0 if lost == {taken.tag} else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    store.consumer.extend()
    say(code, len(store.consumer.settle(generation, [Ack(taken.tag)])), store.consumer.wait(0))


def listen(place: Place) -> None:
    """For each line of the test, wait for messages and report them."""
    store = place.open()
    store.consumer.register("listening@test", ["q"], 1)
    say("up")
    while hear():
        found: list[Leased] = []
        while not found:  # one message may be announced twice
            notified = store.consumer.wait(60)
            found = store.consumer.lease(["q"], 10).messages
        say(notified, *[leased.headers for leased in found])


def wait_for_nothing(place: Place) -> None:
    """Wait until the process is killed."""
    store = place.open()
    store.consumer.register("v", ["q"], 1)
    say("up")
    store.consumer.wait(60)


def publish(place: Place) -> None:
    """Publish a hundred messages after a line of the test."""
    store = place.open()
    say("up")
    hear()
    for number in range(100):
        store.sender.push([message(f"{os.getpid()}-{number}")])
    store.close()


def publish_and_fork(place: Place) -> None:
    """Fork four children that publish, while a thread of the parent publishes too."""
    store = place.open()
    store.sender.push([message("parent-0")])
    stop = threading.Event()
    count = 1

    def publish_more() -> None:
        nonlocal count
        while not stop.is_set() or count < 20:
            store.sender.push([message(f"parent-{count}")])
            count += 1

    thread = threading.Thread(target=publish_more)
    thread.start()
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            for number in range(10):
                store.sender.push([message(f"child{child}-{number}")])
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    stop.set()
    thread.join()
    store.close()
    say(count, *codes)


def close_before_the_child(place: Place) -> None:
    """Fork a child that publishes before and after the parent closes its store, and is then killed."""
    store = place.open()
    store.sender.push([message("parent")])
    reading, writing = os.pipe()
    if os.fork() == 0:
        store.sender.push([message("child, before")])
        say("pushed")
        os.read(reading, 1)
        store.sender.push([message("child, after")])
        os.kill(os.getpid(), signal.SIGKILL)
    hear()
    store.close()
    os.write(writing, b"!")
    os.wait()
    say("closed")


def publish_presence(place: Place) -> None:
    """Be a worker that publishes each line of the test as its presence."""
    store = place.open()
    while text := hear():
        present(store, text)
        if text.startswith('{"waiting":1,'):
            store.consumer.register("victim@test", ["q"], 1)
        else:
            store.consumer.extend()
        say("published")
