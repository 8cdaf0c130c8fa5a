"""Process: services of the operating system: waking threads, files that outlive a process, and forks.

Modules, in reading order: ``wakeup`` (ends a sleep), ``group_commit`` (callers that share one transaction),
``forked`` (cleaning up in a child), ``running_file`` (what each child runs) and ``owner_files`` (whether the
owner of messages lives), ``crash_points`` (places where tests kill the process).
"""
