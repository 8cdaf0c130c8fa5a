"""Receiving: the listener takes messages from the broker, makes requests of them, and tells the broker what
became of them.

Comes from:  the broker.
Goes to:     ``waiting``, where requests are until they may run; and back to the broker.
Thread:      the listener's.

Modules, in reading order: ``listener`` (the thread), ``fetch_window`` (how many messages it may hold),
``intake`` (one message becomes a request), ``ledger`` (the requests that are here), ``replays`` (signed
messages that came before), ``revocations``,
``ack_buffer`` (settlements on their way) and ``settlements`` (settlements that the broker refuses),
``presence_report`` (the worker's status in the broker), ``housekeeping`` (what workers do for each other).
"""
