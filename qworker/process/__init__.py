"""Process: what a process needs of its machine: a way to wake threads, files that outlive it, and forks.

Modules, in reading order: ``wakeup`` (ends a sleep), ``group_commit`` (callers that share one transaction),
``forked`` (what a child must forget), ``running_file`` (what each child runs) and ``owner_files`` (whether
the owner of messages lives), ``crash_points`` (places at which tests end the process).
"""
