"""NATS JetStream: a transport of servers that reserve what they give out, registered by entry point.

Modules, in reading order: ``url`` (and names of streams, subjects and consumers), ``wire`` (one connection to
one server), ``client`` (a connection that outlives its servers, for one thread or for several), ``inbox``
(messages that are asked for), ``queue`` (one queue's calls), ``letters`` (dead letters and failed tasks),
``revocations``, ``server`` (connecting, declaring), ``broker``.
"""
