"""Publishing: the path of a call to the broker.

A call (``add.delay(2, 3)``) gets its options, its route and its id, passes the middleware, and is sent, at
once or in the caller's transaction. Modules, in reading order: ``call`` (a call ready to be sent),
``arguments`` (checked against the function), ``routing`` (choosing the queue), ``plain_calls`` (calls without
options), ``publisher`` (sending), ``retry`` (waiting before another attempt), ``transactions`` (publishing
with the caller's data), ``workflows`` (several calls at once), ``bodies`` (the call after a join),
``body_messages`` (its messages), ``connections`` (objects for code written for kombu).
"""
