"""Redis, Valkey, KeyDB, Sentinel, Cluster: lists and hashes that Celery's workers can read, moved by scripts
in the server.

Modules, in reading order: ``client_options`` (which options a connection has), ``url``, ``connection``,
``envelope`` (keys, and a message in a list), ``scripts`` (what runs in the server), ``database`` (what the
three sides share), ``broker`` (and its administration), ``sender``, ``consumer``, ``waiting`` (how it waits,
and what it has claimed), ``reclaim`` (from dead workers), ``letters`` (dead letters and failed tasks),
``result_rows`` and ``join_rows`` (results and joins beside the ack).
"""
