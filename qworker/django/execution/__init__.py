"""Runs packages, and handles their ends.

Modules, in reading order: ``connections`` (Django's, as for a request), ``reporters`` (error reporting),
``running`` (calls the function), ``cached`` (results in Django's cache), ``parts`` (ended calls of an
iterable), ``endings`` (the steps after an end), ``calls`` (publishing), ``work`` (the task of a worker),
``results`` (the result store).
"""
