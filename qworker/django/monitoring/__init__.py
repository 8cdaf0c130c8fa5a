"""What the commands show that watch clusters.

Modules, in reading order: ``overview`` (what is counted), ``process_memory``, ``screen`` (how it is drawn).
"""
