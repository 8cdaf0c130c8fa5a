"""A custom broker class as a transport: unsupported parts of the interface are withheld by name."""

from __future__ import annotations

from qworker.django.brokers.custom import CustomTransport
from qworker.transports.lease import Admin, Consumer, Sender
from tests.support.promise import FIELDS, not_defined

WITHHELD = {
    "join": "no method of the class publishes by somebody's connection",
    "poll_seconds": "it is asked as often as by default",
}
WITHOUT = {
    "letters": "fail() takes what was taken, and shows it no more; failed tasks are rows of the project's",
    "revocations": "no method of the class tells other workers anything",
    "presence": "workers are not listed by it",
    "peeking": "none of its methods shows a package without giving it out",
    "delayed": "it has nothing delayed",
    "stored_results": "results and joins are not kept with it",
    "by_queue": "kombu's users take nothing from it",
    "registry": "nor have they exchanges there",
}


def test_interface_is_implemented_or_withheld_by_name() -> None:
    assert not_defined(CustomTransport, [Sender, Consumer, Admin], WITHHELD) == []
    transport = CustomTransport(lambda queue: None, "own")  # type: ignore[arg-type,return-value]
    assert {field for field, parts in FIELDS.items() if parts and not getattr(transport, field)} == {*WITHOUT}
