"""One task and one producer for each system whose faults are measured; it runs in the system's own
environment.

Comes from:  ``benchmarks.faults``, which says by FAULT_SYSTEM and FAULT_BROKER which system and where.
Goes to:     the file FAULT_LEDGER: ``S number pid time`` when a task starts, ``E number pid time`` when it
             has ended. Run as a program it sends a call every FAULT_PAUSE seconds until its stdin ends, and
             prints the number of each that was accepted.
"""

import os
import select
import sys
import time
from typing import Any

SYSTEM = os.environ.get("FAULT_SYSTEM", "")
BROKER = os.environ.get("FAULT_BROKER", "")
SECONDS = 0.2
"""How long a task takes."""


def record(kind: str, number: int) -> None:
    """One write to a file opened for appending: lines never mix, and outlive their process."""
    file = os.open(os.environ["FAULT_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{kind} {number} {os.getpid()} {time.time():.6f}\n".encode())
    os.close(file)


def work(number: int) -> None:
    """The task."""
    record("S", number)
    time.sleep(SECONDS)
    record("E", number)


if SYSTEM == "qworker":
    from qworker import QWorker

    app: Any = QWorker("faults", broker=BROKER)
    send = app.task(name="work", ignore_result=True)(work).delay
elif SYSTEM.startswith("celery"):
    from celery import Celery

    app = Celery("faults", broker=BROKER)
    app.conf.broker_connection_retry_on_startup = True
    if SYSTEM == "celery late":
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    send = app.task(name="work", ignore_result=True)(work).delay
elif SYSTEM == "dramatiq":
    import dramatiq

    if BROKER.startswith("redis"):
        from dramatiq.brokers.redis import RedisBroker

        broker: Any = RedisBroker(url=BROKER)
    else:
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        broker = RabbitmqBroker(url=BROKER, confirm_delivery=True)
    dramatiq.set_broker(broker)
    send = dramatiq.actor(actor_name="work")(work).send


def produce() -> None:
    """Send until stdin ends."""
    number = 0
    end = select.poll()
    end.register(sys.stdin, select.POLLIN)
    while not end.poll(float(os.environ["FAULT_PAUSE"]) * 1000):
        number += 1
        try:
            send(number)
        except Exception as error:  # noqa: BLE001 - whatever a system raises, the call was not accepted
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        else:
            print(number, flush=True)


if __name__ == "__main__":
    produce()
