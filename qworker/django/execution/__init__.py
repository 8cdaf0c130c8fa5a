"""A package is run, and what follows its end is seen to.

Modules, in reading order: ``connections`` (Django's, as a request has them), ``reporters`` (who is told of
errors), ``running`` (the function is called), ``cached`` (what is kept in Django's cache), ``parts`` (what an
iterable waits with), ``endings`` (what follows), ``calls`` (who calls), ``work`` (the task of a worker),
``results`` (the store of what they return).
"""
