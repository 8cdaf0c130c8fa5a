"""Process: wakes threads, handles forks, and keeps files that outlive a process.

Modules, in reading order: ``wakeup`` (ends a sleep), ``group_commit`` (callers that share one transaction),
``forked`` (cleanup in a child), ``running_file`` (the messages that each child runs) and ``owner_files``
(whether a consumer is alive), ``memory`` (of a process), ``randomness`` (random pauses),
``crash_points`` (places where tests kill the process).
"""
