"""Tasks: how they are defined and registered, and how one run works.

Modules, in reading order: ``task`` (the object that is called), ``options`` (all options), ``definition`` (a
function becomes a task), ``typed_calls`` and ``codecs`` (conversion by annotations), ``decorators`` and
``shared`` (``@app.task``, ``@shared_task``), ``registry``, ``builtins`` and ``chord_unlock`` (the tasks of
every app), ``loading`` (their modules), ``execution`` and ``async_execution`` (a run), ``termination`` (the
end of calls that did not run), ``copies`` (duplicates that must not run), ``outcome`` (how a run ended),
``next_attempt`` (retries), ``replacement`` (calls sent instead of a run's result), ``followup`` (links),
``unsent`` (calls that cannot be sent now), ``eager`` (a run in the caller's process).
"""
