"""django-q2's broker of IronMQ, as version 3 of IronMQ wants it: a message is deleted by its reservation.

Without that IronMQ refuses, and each task comes back when its reservation ends.
"""

from django_q.brokers.ironmq import IronMQBroker
from django_q.conf import Conf


class Reserving(IronMQBroker):  # type: ignore[misc]
    """What django-q2 hands on as the id of a task is here both ids of the message."""

    def dequeue(self) -> list[tuple[str, str]]:
        got = self.connection.get(timeout=Conf.RETRY or None, wait=1, max=Conf.BULK)["messages"]
        return [(f"{one['id']} {one['reservation_id']}", one["body"]) for one in got]

    def delete(self, task_id: str) -> str:
        return str(self.connection.delete(*task_id.split())["msg"])
