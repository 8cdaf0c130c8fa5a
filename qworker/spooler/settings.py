"""Merges settings, an ini file and the command line into the options of a spooler.

Comes from:  the settings of an app, ``ini``, and the command line.
Goes to:     SpoolerOptions.
Thread:      any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from qworker.conf import Settings
from qworker.errors import ConfigurationError
from qworker.safe_repr import safe_repr
from qworker.spooler.ini import IniFile
from qworker.spooler.options import FREQUENCY_SECONDS, SETTING_OF, SpoolerOptions, with_whole_paths

_OFF_AT_ZERO = ("processes", "max_tasks", "harakiri", "max_attempts")
"""Fields where 0 means none, as in uWSGI."""


def options_of(conf: Settings) -> SpoolerOptions:
    """Return the options in the settings."""
    return merge(conf)


def merge(
    conf: Settings, ini: IniFile | None = None, given: Mapping[str, Any] | None = None
) -> SpoolerOptions:
    """Merge all sources: *given*, from the command line, overrides *ini*, which overrides the settings.

    given: fields of SpoolerOptions. A list replaces the whole list of another source. ConfigurationError for
    contradictions.
    """
    values: dict[str, Any] = {}
    for layer in (values_of(conf), {} if ini is None else ini.values, given or {}):
        values |= _with_default(with_whole_paths(layer))
    directories = values["directories"]
    values["external"] = tuple(path for path in values["external"] if path not in directories)
    for name in _OFF_AT_ZERO:
        values[name] = values[name] or None
    values["socket_key"] = values["socket_key"] or ()
    values["frequency"] = values["frequency"] or FREQUENCY_SECONDS
    if values["ordered"] and values["processes"] is None:
        values["processes"] = 1  # uWSGI's default, too: several processes keep no order
    options = SpoolerOptions(**values)
    _check(options)
    return options


def values_of(conf: Settings) -> dict[str, Any]:
    """Return the values in the settings, by the names of the fields."""
    return {field: conf[setting] for field, setting in SETTING_OF.items()}


def _with_default(values: dict[str, Any]) -> dict[str, Any]:
    """Add ``default`` to *values*: the first named directory, unless it is given."""
    named = (*values.get("directories", ()), *values.get("external", ()))
    if named and not values.get("default"):
        values["default"] = named[0]
    return values


def _check(options: SpoolerOptions) -> None:
    named = (*options.directories, *options.external)
    if options.default is not None and options.default not in named:
        raise ConfigurationError(
            f"the default spool directory {safe_repr(options.default)} is not one of the spool directories: "
            "name it with spooler or spooler_external, too",
            setting="spooler_default",
        )
    if options.backoff > options.backoff_max:
        raise ConfigurationError(
            f"backoff ({options.backoff:g} s) is longer than backoff_max ({options.backoff_max:g} s): "
            "increase backoff_max",
            setting="spooler_backoff",
        )
    if options.chdir is not None and not os.path.isdir(options.chdir):
        raise ConfigurationError(
            f"jobs must run in {safe_repr(options.chdir)}, which is not a directory: create it, or name "
            "another",
            setting="spooler_chdir",
        )
