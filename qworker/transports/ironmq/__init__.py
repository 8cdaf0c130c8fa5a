"""IronMQ, through its HTTP interface: a server that reserves delivered messages.

Modules, in reading order: ``address`` (URLs), ``client`` (HTTP), ``broker`` (connecting, errors, and
operations of one queue).
"""
