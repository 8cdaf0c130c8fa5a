"""Components: the stations of a message in a worker, each with a thread or a table of its own.

Modules, in reading order: ``component`` (the shell of a thread), ``assembly`` (all parts of a worker, and how
they start and stop), ``shutdown`` (how a worker is told to end), ``mailbox`` (and orders to settle),
``worker_lease``, ``presence_report`` (what the broker is told of the worker) with ``memory``, ``listener``
(broker I/O) with ``connection_state``, ``fetch_window``, ``ack_buffer``, ``doubts``,
``settlements``, ``revocations`` and ``housekeeping``, ``intake`` (a message becomes a request), ``replays``,
``request``, ``ledger`` (which requests are here), ``waiting_requests``, ``schedule_controller``,
``ready_queue``, ``task_bucket`` (rate limits), ``mediator`` (gives requests to the pool) with ``early_acks``,
``outcomes`` (what each way to end means) and ``settler``, ``result_writer``, ``joiner`` (sends what follows
the members of a group). Packages: ``pool`` (where tasks
run), ``status`` (what a worker tells of itself).
"""
