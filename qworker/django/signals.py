"""signals: the events of a task, for receivers in the project.

Comes from:  the functions that call a task, the cluster, and its worker processes.
Goes to:     functions that the project connects, as with any signal of Django.
Thread:      the sender's, in the process where it happens. A receiver takes ``**kwargs``.

The sender is always the text "django_q". A task is the dictionary in its package: "id", "name", "func",
"args", "kwargs" and the options of the call.
"""

from django.dispatch import Signal

SENDER = "django_q"
"""The sender of every signal of this module."""

pre_enqueue = Signal()
"""Before a task is signed and given to the broker, in the process that calls it.

task (dict): the task, which the receiver may change.
"""

pre_execute = Signal()
"""Before a task is run, in the worker process.

func (callable): the function that is called. task (dict): the task.
"""

post_execute_in_worker = Signal()
"""After a task was run, in the worker process.

func (callable): the function that was called; None when it was not found. task (dict): the task, with
"success" (bool) and "result".
"""

post_execute = Signal()
"""After a task was run and its result was kept, in the cluster.

task (dict): the task, with "success" (bool), "result", "started" and "stopped".
"""

post_spawn = Signal()
"""After a process of the cluster began, in that process.

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
