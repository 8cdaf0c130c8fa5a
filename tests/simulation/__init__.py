"""simulation: runs fleets in one process, in virtual time, with faults, and compares them to plain Python.

A *case* is plain data: a world, a program, and faults. It is drawn from a seed, run and checked; a failing
case is made smaller and printed as a test. A case always runs the same way, down to each byte of its log.

Modules, in reading order: ``case`` (the data), ``drawing`` (cases from seeds), ``world`` (virtual time and
the scheduler), ``seams`` (store calls and their faults), ``stores`` (the stores of a world), ``nodes``
(workers and callers), ``program`` (the tasks), ``run`` (runs a case), ``checks`` (checks it), ``shrinking``,
``tracing`` (log lines of one order), ``covering`` (which features were combined), ``search``, ``rate`` (how
fast it is). For schedules: ``schedules`` (runs and edits them), ``leading_clock`` (whose clock applied),
``local_times`` (crontabs), ``due_times`` (what must be called), ``timetables`` (cases from seeds).

The same cases also run on real servers, with real workers and in real time: ``real``, with ``real_worker``
(the worker's app), ``real_record`` (the record, in files), ``real_servers`` and ``real_drawing``.
"""
