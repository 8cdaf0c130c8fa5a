"""`qworker doctor` and `qworker config check`: what is wrong, and what to do about it.

Modules, in reading order: ``commands``, ``examinations`` (one function each), ``suitability`` (what the app
uses against what its broker can do).
"""
