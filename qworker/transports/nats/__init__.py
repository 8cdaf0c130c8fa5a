"""NATS JetStream: a transport of servers that hide what they give out, registered by entry point.

Modules, in reading order: ``url`` (and names of streams, subjects and consumers), ``direct`` (a connection
that publishes in its user's thread, and one of nats-py's in a thread of its own), ``queue`` (one queue's
calls), ``reading`` (of a stream to its end), ``letters`` (dead letters and failed tasks), ``revocations``,
``server`` (connecting, declaring), ``broker``.
"""
