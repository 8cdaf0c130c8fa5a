"""Control: requests and changes to workers, from outside.

Modules, in reading order: ``client`` (``app.control``: commands to all workers), ``looking`` (which workers
there are, and where tasks are), ``letters`` (what dead letters and failed tasks have in common),
``dead_letters`` (back into their queues), ``failed`` (``app.failed``: tasks that have failed), ``embedded``
(``app.Worker``: a worker inside of another program).
"""
