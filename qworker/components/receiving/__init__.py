"""Receiving: the listener takes messages from the broker, turns them into requests, and settles them.

Comes from:  the broker.
Goes to:     ``waiting``, where requests stay until they may run; and back to the broker.
Thread:      the listener's.

Modules, in reading order: ``listener`` (the thread, and its periodic tasks), ``fetch_window`` (how many
messages it may hold), ``intake`` (turns a message into a request), ``ledger`` (the requests in this worker),
``replays`` (copies of signed messages), ``ack_buffer`` (settlements to be sent) and ``settlements`` (handling
refused settlements), ``presence_report`` (the worker's status in the broker).
"""
