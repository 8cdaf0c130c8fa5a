"""NATS JetStream: a server that reserves delivered messages, registered by entry point.

Modules, in reading order: ``url`` (and names of streams, subjects and consumers), ``wire`` (one connection to
one server), ``client`` (a connection that outlives its servers, for one thread or for several), ``inbox``
(requesting messages), ``queue`` (operations of one queue), ``broker`` (connecting, declaring, revocations,
dead letters and failed tasks).
"""
