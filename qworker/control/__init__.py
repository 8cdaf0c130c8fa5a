"""Control: inspects and controls workers and tasks from other programs.

Modules, in reading order: ``client`` (``app.control``: commands to all workers), ``looking`` (inspects
workers, queues and tasks), ``letters`` (common code for dead letters and failed tasks), ``dead_letters``
(returns them to their queues), ``failed`` (``app.failed``: failed tasks), ``embedded`` (``app.Worker``: a
worker inside another program).
"""
