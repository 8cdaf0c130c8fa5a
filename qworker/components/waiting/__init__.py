"""Waiting: requests wait for their due time, their rate limit and a slot.

Comes from:  ``receiving``, with new requests; ``ending``, with those that run again.
Goes to:     the pool.
Thread:      the schedule's and the mediator's.

Modules, in reading order: ``schedule_controller`` (requests that are not due yet), ``ready_queue`` and
``task_bucket`` (the same with rate limits), ``mediator`` (gives requests to the pool), ``early_acks``
(requests that are acknowledged before they run), ``inventory`` (all waiting requests, and those of which the
early ack is in doubt).
"""
