"""Servers that reserve what they give out: whoever takes a message has it alone for some seconds.

Modules, in reading order: ``messages`` (what a message looks like there), ``port`` (what a server and its
queues must do: take, extend, finish, give back, send), ``sender``, ``holdings`` (what a consumer has, and how
that leaves it), ``renewal`` (how it stays its own), ``long_poll`` (threads that wait for messages),
``consumer``, ``letters`` (dead letters and failed tasks), ``admin``, ``broker``.

A transport of such a server is a ServerQueue and a Server. All that is beside them here it has for nothing.
"""
