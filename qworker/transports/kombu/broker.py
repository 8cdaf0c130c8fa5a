"""Any broker that kombu has a transport for and we have none of our own: Kafka, files, memory…

Comes from:  ``broker_url`` with such a scheme.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.

It supports what the transport supports (see ``transports/capabilities.py``), and polls. Features that kombu
lacks are replaced: a delayed message is held by the worker, unacknowledged; dead letters go to a queue;
revocations are not broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qworker.transports.capabilities import (
    DEAD_LETTERS,
    ETA,
    IN_A_HEADER,
    NO_FANOUT,
    PRIORITY,
    PROCESSES_ONLY,
    SENT_AGAIN,
    Capabilities,
    Capability,
)
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.kombu.server import KombuServer

if TYPE_CHECKING:
    from qworker.conf import Settings

HELD = (
    "held unacknowledged by the worker that got it, up to worker_eta_task_limit; safe, but it is "
    "redelivered if that worker stops"
)


def _plain(
    name: str,
    schemes: tuple[str, ...],
    accepted: str,
    redelivered: str,
    in_part: Mapping[Capability, str] | None = None,
    **words: str,
) -> Capabilities:
    """Return the row of one of kombu's transports, used through KombuServer."""
    return Capabilities(
        name,
        schemes,
        accepted,
        redelivered,
        eta=HELD,
        priority=words.pop("priority", "none: first come, first served"),
        fanout=NO_FANOUT,
        dead_letters=SENT_AGAIN,
        delivery_count=IN_A_HEADER,
        lacks=frozenset(Capability) - {DEAD_LETTERS},
        in_part={ETA: "in a worker, while it lives", **PROCESSES_ONLY, **(in_part or {})},
        **words,
    )


PLAIN: tuple[Capabilities, ...] = (
    _plain(
        "Kafka",
        ("confluentkafka", "kafka"),
        "passed to the producer's library, which sends it in the background",
        "when the partition is assigned to another consumer",
        note='Needs `pip install "kombu[confluentkafka]"`. Acknowledging one message acknowledges all before '
        "it in its partition.",
    ),
    _plain(
        "SQLAlchemy (kombu's own)",
        ("sqla", "sqlalchemy"),
        "committed",
        "never: kombu hides a message when it is read; the messages of a killed worker are lost",
        note="Use postgresql:// or mysql:// instead.",
    ),
    _plain(
        "Files",
        ("filesystem",),
        "written to a file, without forcing it to the disk",
        "never: kombu removes the file when it is read; the messages of a killed worker are lost",
    ),
    _plain(
        "Memory",
        ("memory",),
        "in the memory of this process",
        "never: it ends with the process",
        priority="0 to 9",
        in_part={PRIORITY: "among the messages of one worker"},
        note="For tests in one process.",
    ),
)
OTHER = _plain(
    "Any other transport of kombu",
    (),
    "kombu's transport returned",
    "depends on kombu's transport; many remove a message when it is read",
    note="Try it with `kill -9` before trusting it.",
)


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use. Raises
    ConfigurationError when a library is missing."""
    options = dict(conf.broker_transport_options)
    url = url or "memory://"
    server = KombuServer(
        url,
        options,
        conf.broker_connection_timeout,
        conf.broker_use_ssl,
        float(options.get("polling_interval") or 0.2),
    )
    server.look_for_library()
    return held_broker(url, server, conf)
