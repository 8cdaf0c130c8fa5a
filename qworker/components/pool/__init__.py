"""The task pool: processes or threads in which tasks run, watched and replaced.

Modules, in reading order: ``contract`` (the interface of a pool), ``choice`` (makes the configured pool),
``process_pool``, ``children`` (assigning requests to them), ``child_handle`` (the worker's view of a child,
and the connection to it), ``child_main`` (the child's side), ``frames`` (their protocol), ``preparation``,
``event_loop``, ``zygote`` (with its keeper), ``spawner`` and ``billiard_spawner`` (how children are started),
``thread_pool`` (threads, and the worker's own thread), ``runtimes`` (expected durations).
"""
