"""Message: the unit stored in the broker, and how it is written and read.

A call becomes a message of Celery's protocol 2. A received message is checked before a worker trusts it.
Modules, in reading order: ``protocol`` (a call as a message), ``marks`` (internal headers, kept apart from
the caller's), ``reading`` (checking a received message), ``chain_text`` (the rest of a chain, unparsed),
``celery_v1`` (messages of protocol 1), ``kombu_envelope`` (the JSON around a message where the broker has no
headers), ``serialization`` (bodies), ``kombu_json`` (JSON in kombu's dialect), ``exceptions`` (exceptions as
data), ``failures`` (the record of a failure), ``signing``, ``context`` (the
message of the running task).

No module here imports a broker, an app or a task.
"""
