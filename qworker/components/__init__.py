"""Components: the stages that a message passes in a worker.

Modules, in reading order: ``component`` (a part with a thread), ``assembly`` (all parts, and the order in
which they start and stop), ``shutdown`` (the phases of stopping), ``request`` (a message in the worker),
``mailbox`` (messages between threads) and ``worker_lease`` (the worker's registration with the broker).

Packages, in the order in which a message passes them: ``receiving`` (the listener's thread, which also
acknowledges), ``waiting`` (for the due time, a rate limit or a slot), ``pool`` (where tasks run), ``ending``
(the consequences of a run), ``status`` (reports about the worker). Each imports only earlier ones of: pool,
waiting, receiving, status, ending.
"""
