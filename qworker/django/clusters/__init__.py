"""What makes a worker of qworker the cluster of a project.

Modules, in reading order: ``engine`` (the app, whose worker it is), ``scheduling`` (it sends what is due),
``retention`` (it deletes what is old), ``log`` (what it says of itself), ``announcing`` (the same to other
processes, where the broker cannot), ``ending`` (along with who has started it).
"""
