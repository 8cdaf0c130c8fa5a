"""The peers by name: one row each, grouped by broker, and the module of `benchmarks.adapters` that the row
names.

To add a peer, add a row in the module of its broker and an adapter. `python -m benchmarks run --peers NAME`
measures it.
"""

from benchmarks.peer import Peer
from benchmarks.peers import databases, disque, embedded, ironmq, mongodb, nats, rabbitmq, redis, sqs

PEERS: dict[str, Peer] = {
    peer.name: peer
    for module in (embedded, redis, rabbitmq, databases, ironmq, mongodb, nats, disque, sqs, mongodb)
    for peer in module.ROWS
}

GROUPS: dict[str, str] = {peer.group.lower(): peer.group for peer in PEERS.values()}
"""The brokers, by the name that the command line takes."""
