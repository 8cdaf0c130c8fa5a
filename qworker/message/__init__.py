"""Message: what is in the broker, and how it is written and read.

A call becomes a message of Celery's protocol 2, and a message that anybody sent becomes headers that a worker
can trust. Modules, in reading order: ``protocol`` (what a call is as a message), ``reading`` (a message of
whatever origin, checked), ``kombu_envelope`` (the JSON around a message where the broker has no headers, and
protocol 1), ``serialization`` (bodies), ``kombu_json`` (JSON with kombu's types), ``exceptions`` (errors as
data and back), ``signing``.

Nothing here knows a broker, an app or a task.
"""
