"""A process with many complete workers, each on a thread of its own, for ``fleet``.

Arguments: the broker's URL, the number of the first worker, and how many. It writes "ready" once all wait for
messages, and at the end of its input a line for each task that ran: its name, and its start in monotonic
nanoseconds.
"""

import sys
import threading
import time

from benchmarks.fleet import make_app
from qworker.testing import StepWorker

STARTING = 8
"""Workers that start at a time."""


def main(url: str, first: int, size: int) -> None:
    """Run *size* workers until the input ends."""
    starts: list[tuple[str, int]] = []
    failed: list[Exception] = []
    ending, turn = threading.Event(), threading.Semaphore(STARTING)
    waiting = threading.Semaphore(0)

    def work(number: int) -> None:
        try:
            consume(number)
        except Exception as error:  # noqa: BLE001 - told by the main thread
            failed.append(error)
            waiting.release()

    def consume(number: int) -> None:
        app = make_app(url)

        @app.task(name="stamp")
        def stamp(name: str) -> None:
            starts.append((name, time.monotonic_ns()))

        with turn:
            worker = StepWorker(app, hostname=f"w{number}@fleet", concurrency=1)
        workers.append(worker)
        listener, clock = worker.parts.listener, app.clock
        rest, told = 0.0, False
        while not ending.is_set():
            listener.wait(rest)
            rest = listener.step(clock.monotonic()) or 0.0
            worker.parts.schedule.step(clock.monotonic())
            worker.parts.mediator.step(clock.monotonic())
            if rest and not told:
                told = True
                waiting.release()
        worker.stop()
        app.close()

    workers: list[StepWorker] = []
    threads = [threading.Thread(target=work, args=(first + number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for _ in range(size):
        waiting.acquire()
        if failed:
            ending.set()
            sys.exit(str(failed[0]))
    print("ready", flush=True)
    sys.stdin.read()
    ending.set()
    for worker in list(workers):
        worker.parts.listener.wake()
    for thread in threads:
        thread.join()
    for name, at in starts:
        print(name, at)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
