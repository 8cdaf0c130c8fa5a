"""The task pool: processes or threads in which tasks run, watched and replaced.

Modules, in reading order: ``contract`` (what a pool is), ``choice`` (which one), ``process_pool``,
``children`` (which of them has room), ``child_handle`` (one child, seen from the worker), ``child_main``
(seen from within), ``frames`` (what they say to each other), ``preparation``, ``event_loop``, ``zygote``,
``zygote_keeper``, ``spawner`` and ``billiard_spawner`` (where children come from), ``thread_pool`` (threads,
and the worker's own thread).
"""
