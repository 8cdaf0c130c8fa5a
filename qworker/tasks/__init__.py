"""Tasks: their definition, their registry, and a run.

Modules, in reading order: ``task`` (the object that is called), ``options`` (all options), ``definition``
(makes tasks of functions), ``typed_calls`` and ``codecs`` (conversion by annotations), ``decorators`` and
``shared`` (``@app.task``, ``@shared_task``), ``registry``, ``builtins`` and ``chord_unlock`` (the tasks of
every app), ``loading`` (modules of tasks), ``execution`` and ``async_execution`` (a run), ``termination``
(the end of calls that did not run), ``copies`` (duplicates that must not run), ``outcome`` (the end of a
run), ``next_attempt`` (retries), ``replacement`` (calls sent instead of a result), ``followup`` (links),
``coroutines`` (running one to its end), ``unsent`` (calls that cannot be sent now), ``eager`` (a run in the
caller's process).
"""
