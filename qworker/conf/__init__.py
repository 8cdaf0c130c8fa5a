"""Configuration: the settings, their values, and the source of each value.

Modules, in reading order: ``setting`` (a declaration), ``broker``, ``tasks``, ``results``, ``workers``,
``schedules`` and ``spooler`` (the declarations by topic), ``settings`` (all of them), ``kinds`` (types of
values), ``sources`` (where values come from), ``resolved`` (the values of an app), ``checks`` (combinations
of settings), ``compat`` (Celery's old names), ``secrets`` (masking), ``reference`` (their documentation
page), ``unsupported`` (Celery's names that are not available).
"""

from qworker.conf.resolved import Row, Settings
from qworker.conf.secrets import mask, mask_urls
from qworker.conf.setting import Setting
from qworker.conf.settings import SETTINGS
from qworker.conf.sources import Problem, read_tool_table

__all__ = ["SETTINGS", "Problem", "Row", "Setting", "Settings", "mask", "mask_urls", "read_tool_table"]
