"""Configuration: every setting declared once, every value with the place it came from.

Modules, in reading order: ``setting`` (a declaration), ``broker``, ``tasks``, ``results``, ``workers``,
``schedules`` and ``spooler`` (the declarations by topic), ``settings`` (all of them), ``kinds`` (what a value
may be), ``sources`` (where values come from), ``resolved`` (the values of an app), ``configuring`` (how an
app is given them), ``checks`` (which do not go together), ``compat`` (Celery's old names), ``secrets`` (what
is never shown), ``reference`` (the page of them), ``absent`` (Celery's names that are not here).
"""

from qworker.conf.resolved import Row, Settings
from qworker.conf.secrets import mask, mask_urls
from qworker.conf.setting import Setting
from qworker.conf.settings import SETTINGS
from qworker.conf.sources import Problem, read_tool_table

__all__ = ["SETTINGS", "Problem", "Row", "Setting", "Settings", "mask", "mask_urls", "read_tool_table"]
