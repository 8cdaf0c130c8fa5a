"""monitoring: the displays of the commands that watch clusters.

Modules, in reading order: ``overview`` (the figures), ``process_memory``, ``screen`` (drawing).
"""
