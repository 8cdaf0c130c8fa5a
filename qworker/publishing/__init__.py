"""Publishing: a call on its way to the broker.

A call (``add.delay(2, 3)``) gets its options, its route and its id, passes the middleware, and is sent, tried
again, or sent with its caller's transaction. Modules, in reading order: ``call`` (a call as it is to be
sent), ``options`` (what a type checker knows of it), ``arguments`` (does the function take them), ``routing``
(to which queue), ``plain_calls`` (calls without options), ``publisher`` (sends), ``retry`` (when to try
again), ``transactions`` (sent with the caller's data), ``workflows`` (many calls that hang together),
``bodies`` (what follows a join), ``body_messages`` (that, called or told to fail), ``connections`` (what code
that was written for kombu asks for).
"""
