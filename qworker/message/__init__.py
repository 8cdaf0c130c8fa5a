"""Message: writes and reads the messages stored in the broker.

A call becomes a message of Celery's protocol 2. Received messages are checked before they are used. Modules,
in reading order: ``protocol`` (a call as a message, and messages of protocol 1), ``marks`` (internal headers,
separate from the caller's), ``reading`` (checks of a received message), ``chain_text`` (the unparsed rest of
a chain), ``kombu_envelope`` (the JSON around a message in brokers without headers), ``serialization``
(bodies), ``kombu_json`` (JSON in kombu's dialect), ``exceptions`` (exceptions as data), ``failures`` (the
record of a failure), ``plain_pickle`` (pickles of plain data), ``signing``, ``context`` (the request of the
running task).

No module here imports a broker, an app or a task.
"""
