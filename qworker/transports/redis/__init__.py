"""Redis, Valkey, KeyDB, Sentinel: lists and hashes that Celery's workers can read, moved by scripts in the
server.

Modules, in reading order: ``url``, ``connection``, ``layout`` (which keys there are), ``envelope`` (a message
in a list), ``scripts`` (what runs in the server), ``broker`` (what any thread asks), ``consumer`` (what a
worker asks), ``settling``, ``waiting``, ``reclaim`` (from dead workers), ``dead_letters``, ``result_rows``
(results beside the ack).
"""
