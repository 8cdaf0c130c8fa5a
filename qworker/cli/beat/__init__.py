"""`qworker beat`: runs the scheduler, and shows and changes its entries.

Modules, in reading order: ``commands`` and the process of the scheduler, ``options`` (the fields of an
entry), ``shown`` (entries as text and JSON), ``examined`` (problems of entries).
"""
