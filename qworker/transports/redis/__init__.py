"""Redis, Valkey, KeyDB, Sentinel: lists and hashes that Celery's workers can read, moved by scripts in the
server.

Modules, in reading order: ``client_options`` (which options a connection has), ``url``, ``connection``,
``layout`` (which keys there are), ``envelope`` (a message in a list), ``scripts`` (what runs in the server),
``database`` (what the three sides share), ``broker``, ``sender``, ``revocations``, ``consumer``, ``claims``
(what it holds), ``settling``, ``subscription`` (how it waits), ``reclaim`` (from dead workers), ``admin``,
``peeking``, ``failed`` (tasks), ``dead_letters``, ``result_rows`` and ``join_rows`` (results and joins beside
the ack), ``registry`` (kombu's exchanges).
"""
