"""IronMQ, through its HTTP interface: a server that reserves delivered messages.

Modules, in reading order: ``address`` (URLs), ``client`` (HTTP), ``queue`` (operations of one queue),
``server`` (connecting, and errors), ``broker``.
"""
