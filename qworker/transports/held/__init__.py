"""Servers that reserve delivered messages: a consumer has a message exclusively for some seconds.

Modules, in reading order: ``messages`` (the format of a message), ``port`` (the interface of a server and its
queues: take, extend, finish, give back, send), ``sender``, ``holdings`` (the messages of a consumer, and
their end), ``long_poll`` (threads that poll), ``consumer`` (which extends reservations), ``broker`` (and its
administration, dead letters and failed tasks).

A transport for such a server implements a ServerQueue and a Server; everything else is here.
"""
