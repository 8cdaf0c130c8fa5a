"""Components: the stations of a message in a worker, each with a thread or a table of its own.

Modules, in reading order: ``component`` (the shell of a thread), ``assembly`` (all parts of a worker, and the
orders in which they start and stop), ``shutdown`` (the states in which a worker ends), ``request`` (a message
in the worker), ``mailbox`` (requests from one thread to another) and ``worker_lease`` (the worker's
registration with the broker).

Packages, in the order of a message's way: ``receiving`` (the listener's thread, which also acknowledges),
``waiting`` (for the due time, a rate limit or a slot), ``pool`` (where tasks run), ``ending`` (what becomes
of a run), ``status`` (reports on the worker). They import each other in one direction (pool, waiting,
receiving, status, ending: each only those before it).
"""
