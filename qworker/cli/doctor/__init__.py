"""`qworker doctor` and `qworker config check`: problems, and what to do about them.

Modules, in reading order: ``commands``, ``examinations`` (one function each), ``suitability`` (the app's
needs and the broker's capabilities).
"""
