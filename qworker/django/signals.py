"""signals: the events of a task, for receivers in the project.

Comes from:  the functions that call a task, the cluster, and its worker processes.
Goes to:     functions that the project connects, as with any signal of Django.
Thread:      the sender's, in the process of the event. Receivers take ``**kwargs``.

The sender is always the text "django_q". A task is the dictionary in its package: "id", "name", "func",
"args", "kwargs" and the options of the call.
"""

from django.dispatch import Signal

SENDER = "django_q"
"""The sender of all these signals."""

pre_enqueue = Signal()
"""Sent before a task is signed and enqueued, in the process that calls it.

task (dict): the task; receivers may change it.
"""

pre_execute = Signal()
"""Sent before a task is run, in the worker process.

func (callable): the function to call. task (dict): the task.
"""

post_execute_in_worker = Signal()
"""Sent after a task was run, in the worker process.

func (callable): the function that was called; None if it was not found. task (dict): the task, with "success"
(bool) and "result".
"""

post_execute = Signal()
"""Sent after a task has ended and its hook was called, in the worker process; its row may not be stored yet.

task (dict): the task, with "success" (bool), "result", "started" and "stopped".
"""

post_spawn = Signal()
"""Sent when a worker process of the cluster has started, in that process.

proc_name (str): the name of the process.
"""

ARGUMENTS = {
    "pre_enqueue": ("task",),
    "pre_execute": ("func", "task"),
    "post_execute_in_worker": ("func", "task"),
    "post_execute": ("task",),
    "post_spawn": ("proc_name",),
}
"""The arguments of each signal, by name."""
