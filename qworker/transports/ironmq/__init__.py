"""IronMQ, by its HTTP interface: a transport of those that hide what they give out.

Modules, in reading order: ``address`` (what a URL says), ``client`` (HTTP), ``queue`` (one queue's calls),
``server`` (connecting, and errors), ``broker``.
"""
