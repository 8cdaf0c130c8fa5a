"""NATS JetStream: a transport of servers that hide what they give out, registered by entry point.

Modules, in reading order: ``url``, ``layout`` (names of streams, subjects and consumers), ``client`` (a
thread in which nats-py runs, and exchanges of many messages), ``direct`` (a connection that publishes in its
user's thread), ``queue`` (one queue's calls), ``reading`` (of a stream to its end), ``letters`` (dead letters
and failed tasks), ``revocations``, ``server`` (connecting, declaring), ``sender``, ``admin``, ``broker``.
"""
