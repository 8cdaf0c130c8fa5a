"""Components: the stations of a message in a worker, each with a thread or a table of its own.

Modules, in reading order: ``component`` (the shell of a thread), ``mailbox`` (and orders to settle),
``listener`` (broker I/O) with ``fetch_window``, ``ack_buffer``, ``settlements`` and ``housekeeping``,
``intake`` (a message becomes a request), ``replays``, ``request``, ``ledger`` (which requests are here),
``schedule_controller``, ``ready_queue``, ``task_bucket`` (rate limits), ``mediator`` (gives requests to the
pool) with ``early_acks``, ``outcomes`` (what each way to end means) and ``settler``, ``result_writer``,
``orders`` (to end). Packages: ``pool`` (where tasks run), ``status`` (what a worker tells of itself).
"""
