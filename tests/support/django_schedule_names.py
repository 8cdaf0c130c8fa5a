"""A script whose processes create a schedule of the same name at the same moment, some in a transaction.

Comes from:  tests, which start it with one argument: '{"database": {…}, "rounds": …}'
Goes to:     the database; standard output: how many have the name after each round, and how each ended.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

from tests.support.django_migrating import call, configure

PROCESSES = 4


def main(order: dict[str, Any]) -> list[Any]:
    configure(order, ["qworker.django"])
    from django.db import OperationalError, connection, transaction
    from django.utils import timezone

    from qworker.django.execution import parts
    from qworker.django.models import Part, Schedule
    from qworker.django.tasks import schedule

    call("migrate")
    connection.close()
    forking = get_context("fork")
    barrier, ends = forking.Barrier(PROCESSES), forking.Queue()

    def in_a_transaction(turn: int) -> None:
        """Retry the transaction: the server may abort it because of a deadlock or a serialization failure."""
        while True:
            try:
                with transaction.atomic():
                    Schedule.objects.count()  # the snapshot of the transaction starts here
                    schedule("math.sqrt", 4, name=f"nightly {turn}", schedule_type="D")
                return
            except OperationalError:
                time.sleep(0.01)

    def make(number: int) -> None:
        for turn in range(order["rounds"]):
            connection.ensure_connection()
            barrier.wait()
            try:
                if (number + turn) % 2:
                    in_a_transaction(turn)
                else:
                    schedule("math.sqrt", 4, name=f"nightly {turn}", schedule_type="D")
            except Exception as error:  # noqa: BLE001 - told to the test
                ends.put(type(error).__name__)
            else:
                ends.put("made")

    children = [forking.Process(target=make, args=(number,)) for number in range(PROCESSES)]
    for child in children:
        child.start()
    found = sorted(ends.get() for _ in range(PROCESSES * order["rounds"]))
    for child in children:
        child.join()
    Part.objects.update(changed=timezone.now() - timedelta(days=2))
    parts.tidy()
    return [sorted(Schedule.objects.values_list("name", flat=True)), found, Part.objects.count()]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
