"""Message: what is in the broker, and how it is written and read.

A call becomes a message of Celery's protocol 2. A message that anybody sent becomes headers that a worker can
trust. Modules, in reading order: ``protocol`` (what a call is as a message), ``marks`` (headers of ours, kept
apart from the caller's), ``reading`` (a message of whatever origin, checked), ``chain_text`` (the rest of a
chain, as it came), ``celery_v1`` (messages of protocol 1), ``kombu_envelope`` (the JSON around a message
where the broker has no headers), ``serialization`` (bodies), ``kombu_json`` (JSON with kombu's types),
``exceptions`` (errors as data and back), ``failures`` (what is noted of a failed task), ``signing``.

Nothing here knows a broker, an app or a task.
"""
