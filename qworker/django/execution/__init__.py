"""execution: runs packages, and handles their ends.

Modules, in reading order: ``connections`` (Django's connections), ``reporters`` (error reporting),
``running`` (calls the function), ``cached`` (results in Django's cache), ``parts`` (ended calls of an
iterable), ``endings`` (the steps after an end), ``calls`` (publishing), ``work`` (the worker's task),
``results`` (the result store).
"""
