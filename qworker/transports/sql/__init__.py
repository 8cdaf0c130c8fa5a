"""SQL databases: messages are rows, which workers take with SKIP LOCKED on PostgreSQL, MySQL and MariaDB.

Modules, in reading order: ``schema``, ``link`` (one connection, and what differs between databases),
``polling`` (for messages that are not announced), ``postgresql`` and ``mysql`` with ``pooler``,
``timeout_connection``, ``mysql_options`` and ``limited_connection``, ``links`` (which of them a URL needs),
``refusals`` (values that a database will never accept), ``broker`` (its administration, dead letters,
failed tasks, and kombu's exchanges) with its ``sender`` and ``consumer``, ``settle``, ``reclaim`` (from dead
workers, also in SQLite), ``results`` with ``result_rows``, ``result_states`` and ``result_upserts`` (stored
with the ack), ``join_rows`` (parts of joins, stored with it, too).
Package: ``embedded``, the broker in an SQLite file.
"""
