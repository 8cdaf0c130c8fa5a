"""Tasks: what a task is, how an app comes to have it, and one run of it.

Modules, in reading order: ``task`` (the object that is called), ``options`` (every option once),
``definition`` (a function becomes a task), ``typed_calls`` and
``forms`` (what annotations say of arguments), ``decorators`` and ``shared`` (``@app.task``,
``@shared_task``), ``registry``, ``builtins`` and ``chord_unlock`` (those of every app), ``loading`` (their
modules), ``execution`` and ``async_execution`` (a run),
``aftermath`` (of what did not come to run), ``copies`` (what is not to run again), ``outcome`` (how it
ended), ``next_attempt`` (retries), ``replacement`` (what a run sends in its stead), ``followup`` (links),
``unsent`` (what cannot be sent for now), ``eager`` (a run in the caller's process).
"""
