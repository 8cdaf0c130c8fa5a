"""Configuration: every setting declared once, every value with the place it came from."""

from qworker.conf.resolved import Row, Settings
from qworker.conf.secrets import mask, mask_urls
from qworker.conf.setting import Setting
from qworker.conf.settings import SETTINGS
from qworker.conf.sources import Problem, read_tool_table

__all__ = ["SETTINGS", "Problem", "Row", "Setting", "Settings", "mask", "mask_urls", "read_tool_table"]
