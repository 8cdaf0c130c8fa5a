"""Servers that hide what they give out: whoever receives a message has it alone for some seconds.

Modules, in reading order: ``text`` (what a message looks like there), ``queue`` (what a server must do: one
queue's calls), ``server`` (connecting), ``sender``, ``long_poll`` (threads that wait for messages),
``renewal`` (how they stay ours), ``parting`` (how they leave), ``consumer``, ``admin``, ``failed`` (failed
tasks), ``broker``.

A transport of such a server is a RemoteQueue and a RemoteServer. All that is beside them here it has for
nothing.
"""
