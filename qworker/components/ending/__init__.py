"""Ending: the consequences of a run: the result, the settlement of its message, and the following calls.

Comes from:  the pool, with outcomes.
Goes to:     the result store, and the listener's mailbox.
Thread:      the pool's, the result writer's and the joiner's.

Modules, in reading order: ``outcomes`` (the table of consequences), ``settler`` (makes orders to the
listener), ``result_writer`` (results in a separate store), ``joiner`` (sends the bodies of joins).
"""
