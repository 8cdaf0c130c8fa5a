"""Simulation: whole fleets in one process, in virtual time, with faults, held against plain Python.

A *case* is plain data: the dimensions of a world, a program, and faults. It is drawn from a seed, run and
checked; when it fails it is made smaller and printed as a test. The same case runs the same way each time, to
the byte of its log.

Modules, in reading order: ``case`` (the data), ``drawing`` (cases from seeds), ``world`` (nodes, virtual time
and who steps next), ``seams`` (calls of stores, and what fails there), ``stores`` (those of a world),
``nodes`` (publishers, workers, callers), ``program`` (the tasks), ``run`` (one case from start to end),
``checks`` (what must hold afterwards), ``shrinking``, ``tracing`` (what the log says of one order),
``covering`` (which features met), ``search``. Of schedules: ``schedules`` (who looks
after them), ``due_times`` (what must be called), ``timetables`` (cases from seeds).

The same cases run on real servers, with real workers and in real time: ``real``, with ``real_worker`` (the
worker's app), ``real_record`` (what ran, in files), ``real_servers`` and ``real_drawing``.
"""
