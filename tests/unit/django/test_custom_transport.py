"""A broker of the project's own, as a transport: what its class cannot do is withheld by name."""

from __future__ import annotations

from qworker.django.brokers.custom import CustomTransport
from qworker.transports.lease import Admin, Broker, Consumer, Sender
from tests.support.promise import not_defined

WITHHELD = {
    "revoke": "no method of the class tells other workers anything",
    "join": "nor does any publish by somebody's connection",
    "present": "workers are not listed by it",
    "look": "kombu's users take nothing from it, and nothing is prefetched by one queue",
    "unbind": "the same",
    "confirm": "acknowledge() has answered when it returns",
    "settled_before": "nobody but the class knows what became of a receipt",
    "letters": "fail() takes what was taken, and shows it no more; failed tasks are rows of the project's",
    "may_have_due_joins": "joins are not kept with it, so what waits for them looks itself",
    "peek": "none of its methods shows a package without giving it out",
    "flush_delayed": "it has nothing delayed",
    "purges_leased": "purge_queue() says nothing of what is in hand",
    "lowest_first": "it has no priorities",
    "registry": "nor exchanges",
    "silent_seconds": "how long its server waits for a silent worker only the class knows",
    "missing": "and whether there is a server",
}


def test_all_of_the_promise_is_kept_or_withheld_by_name() -> None:
    assert not_defined(CustomTransport, [Sender, Consumer, Admin, Broker], WITHHELD) == []
