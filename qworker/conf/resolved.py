"""Settings: the effective values, each with its source.

Comes from:  sources, in this order: defaults, [tool.qworker], code (`config_from_object`, `update`),
             QWORKER_*, command line.
Goes to:     all modules, as plain attributes of `app.conf`.
Thread:      any; the first read of a setting resolves all. Later reads are plain attribute look-ups.
"""

import os
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any, NamedTuple

from qworker.conf.broker import BrokerSettings
from qworker.conf.checks import check
from qworker.conf.compat import understand
from qworker.conf.results import ResultSettings
from qworker.conf.schedules import ScheduleSettings
from qworker.conf.secrets import is_secret, mask
from qworker.conf.settings import SETTINGS
from qworker.conf.sources import (
    Given,
    Layer,
    Problem,
    Source,
    from_environment,
    from_mapping,
    from_object,
    from_pyproject,
)
from qworker.conf.spooler import SpoolerSettings
from qworker.conf.tasks import TaskSettings
from qworker.conf.workers import WorkerSettings
from qworker.errors import ConfigurationError
from qworker.naming import close_matches

DEFAULT_SOURCE = "default"


class Row(NamedTuple):
    """One setting for display. Secrets in value and default are masked."""

    name: str
    value: Any
    default: Any
    source: str


class _Resolution(NamedTuple):
    values: dict[str, Any]
    extra: dict[str, Any]
    given: dict[str, Given]
    problems: list[Problem]


class Settings(
    BrokerSettings, TaskSettings, ResultSettings, WorkerSettings, ScheduleSettings, SpoolerSettings
):
    """All settings of one app, as attributes and items; see `SETTINGS` for their declarations.

    Sources are read on first use. Invalid values then raise one ConfigurationError that lists all of them.
    `problems()` never raises.
    """

    revision: object
    """A new object after each change; None before the first use."""

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        label: str = "QWorker(…)",
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Create settings without reading any source.

        - values (mapping): settings given in code.
        - label (text): the name of that source.
        - before: called once before the first read; it may give values.
        - after: called once after the first read.
        - environ (mapping): environment variables; None: os.environ.
        - directory: of pyproject.toml; None: the working directory.
        """
        hidden = self.__dict__
        hidden["_before"], hidden["_after"] = before, after
        hidden["_defaults"] = []
        hidden["_pyproject"] = from_pyproject(directory)
        hidden["_code"] = [from_mapping(values, label)] if values else []
        hidden["_environment"] = from_environment(os.environ if environ is None else environ)
        hidden["_command_line"] = []
        hidden["_resolution"] = hidden["revision"] = None

    # -- giving values

    def update(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Give values in code. The environment and the command line override them."""
        self._add("_code", from_mapping({**(values or {}), **more}, "app.conf"))

    def load(self, origin: Any, namespace: str | None = None, silent: bool = False) -> None:
        """Give the values in an object, a mapping, a module, or the dotted name of one, which is read when
        needed.

        - namespace (text): as for config_from_object.
        - silent (bool): ignore a missing module.
        """
        self._add("_code", from_object(origin, namespace, silent))

    def add_defaults(self, values: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """Give values that all other sources override; later calls override earlier ones. A function is
        called when its values are needed."""
        self._add(
            "_defaults", lambda: from_mapping(values() if callable(values) else values, "add_defaults")()
        )

    def setdefault(self, name: str, value: Any) -> Any:
        """Set a setting that no source has set. Return the effective value."""
        if self.source(name) == DEFAULT_SOURCE:
            self.update({name: value})
        return self[name]

    def command_line(self, values: Mapping[str, Any], label: str = "command line") -> None:
        """Give values that override all others. None means not given. label: the name of this source."""
        chosen = {name: value for name, value in values.items() if value is not None}
        self._add("_command_line", from_mapping(chosen, label))

    def _add(self, level: str, source: Source) -> None:
        sources = self.__dict__[level]
        sources.append(source)
        if self.__dict__["_resolution"] is None:
            return
        try:
            self._resolve()
        except ConfigurationError:
            sources.remove(source)  # keep the earlier values
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    # -- reading values

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes: all settings before the first use, and unknown ones.
        if name.startswith("_"):
            raise AttributeError(name)
        if self.__dict__["_resolution"] is None:
            self._resolve()
            if name in self.__dict__:
                return self.__dict__[name]
        if (known := understand(name)) and known.without_effect:
            raise AttributeError(f"Celery's setting {name!r} has no effect here: {known.without_effect}")
        nearest = close_matches(name, SETTINGS)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise AttributeError(f"there is no setting {name!r}{hint}")

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            known = understand(name) if isinstance(name, str) else None
            hint = f": it is {known.name} here" if known and known.without_effect is None else ""
            raise KeyError(f"{error}{hint}") from None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting, or *default* when there is no such setting."""
        return getattr(self, name, default)

    def __contains__(self, name: object) -> bool:
        return name in SETTINGS or name in self._looked_up().extra

    def __iter__(self) -> Iterator[str]:
        return iter(SETTINGS)

    def __len__(self) -> int:
        return len(SETTINGS)

    def keys(self) -> list[str]:
        """Return the names of all settings."""
        return list(SETTINGS)

    def items(self) -> ItemsView[str, Any]:
        """Return all settings with their values, including passwords. as_dict() masks them."""
        return self.as_dict(mask=False).items()

    def values(self) -> ValuesView[Any]:
        """Return the values of all settings, including passwords."""
        return self.as_dict(mask=False).values()

    def __repr__(self) -> str:
        changed = {row.name: row.value for row in self.rows() if row.source != DEFAULT_SOURCE}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    # -- describing values

    def source(self, name: str) -> str:
        """Return the source of a setting's value: "default", "environment variable QWORKER_…", …"""
        if name not in SETTINGS:
            raise KeyError(name)
        given = self._looked_up().given.get(name)
        return given.source if given else DEFAULT_SOURCE

    def problems(self) -> list[Problem]:
        """Return all problems, most severe first; [] if there are none. Never raises."""
        order = ("error", "warning", "note")
        return sorted(self._looked_up().problems, key=lambda problem: order.index(problem.severity))

    def validate(self) -> None:
        """Raise one ConfigurationError for all errors. Warnings and notes are ignored."""
        _refuse_errors(self.problems())

    def rows(self, changed_only: bool = False) -> list[Row]:
        """Return all settings with value and source, secrets masked. changed_only: omit defaults."""
        resolution = self._looked_up()
        return [
            Row(name, mask(name, resolution.values[name]), mask(name, setting.default), self.source(name))
            for name, setting in SETTINGS.items()
            if not changed_only or name in resolution.given
        ]

    def as_dict(self, mask: bool = True) -> dict[str, Any]:
        """Return all values by name. mask=False includes secrets."""
        if mask:
            return {row.name: row.value for row in self.rows()}
        return dict(self._looked_up().values)

    def table(self, with_defaults: bool = False, censored: bool = True) -> dict[str, Any]:
        """Return the values that were given, by name. with_defaults: all values. censored: mask secrets."""
        given = self._looked_up().given
        values = self.as_dict(mask=censored)
        return {name: value for name, value in values.items() if with_defaults or name in given}

    def humanize(self, with_defaults: bool = False, censored: bool = True) -> str:
        """Return table() as text: ``name: value``, one per line."""
        settings = self.table(with_defaults, censored)
        return "\n".join(f"{name}: {value!r}" for name, value in settings.items())

    # -- resolving

    def _looked_up(self) -> _Resolution:
        return self.__dict__["_resolution"] or self._read()

    def resolve(self) -> None:
        """Read all sources, if that was not done yet. Raises ConfigurationError for invalid values."""
        if self.__dict__["_resolution"] is None:
            self._resolve()

    def _resolve(self) -> None:
        """Read all sources and make the values plain attributes. Raises ConfigurationError for invalid
        values."""
        hidden = self.__dict__
        before, hidden["_before"] = hidden["_before"], None
        if before is not None:
            before()
        resolution = self._read()
        _refuse_errors(resolution.problems)
        hidden.update(resolution.extra)
        hidden.update(resolution.values)
        # Last, because other threads then expect the values to be set.
        hidden["_resolution"] = hidden["revision"] = resolution
        after, hidden["_after"] = hidden["_after"], None
        if after is not None:
            after()

    def _read(self) -> _Resolution:
        hidden = self.__dict__
        project, code = hidden["_pyproject"](), [source() for source in hidden["_code"]]
        layers: list[Layer] = [
            *(source() for source in hidden["_defaults"]),
            project,
            *code,
            hidden["_environment"](),
            *(source() for source in hidden["_command_line"]),
        ]
        values = {name: setting.fresh_default() for name, setting in SETTINGS.items()}
        extra: dict[str, Any] = {}
        given: dict[str, Given] = {}
        problems = [problem for layer in code for problem in _replaced_tables(project, layer)]
        for layer in layers:
            problems += layer.problems
            extra |= layer.extra
            given |= layer.values
        for name, (raw, source) in given.items():
            try:
                values[name] = SETTINGS[name].read(raw)
            except ValueError as error:
                joined = ", but is" if str(error).startswith("must") else ":"
                shown = "" if is_secret(name) else f"{joined} {mask(name, raw)!r}"
                problems.append(Problem(name, f"{name} {error}{shown[:200]}", source, "error"))

        def source_of(name: str) -> str:
            return given[name].source if name in given else DEFAULT_SOURCE

        return _Resolution(values, extra, given, problems + check(values, source_of))


def _replaced_tables(before: Layer, after: Layer) -> list[Problem]:
    """Return a warning for each table of *before* that *after* sets, too, probably to add to it."""
    return [
        Problem(
            name,
            f"{name} is also set in {before.values[name].source}, which has no effect: tables are not merged",
            after.values[name].source,
            "warning",
        )
        for name in before.values.keys() & after.values.keys()
        if isinstance(before.values[name].value, dict) and before.values[name].value
    ]


def _refuse_errors(problems: list[Problem]) -> None:
    errors = [problem for problem in problems if problem.severity == "error"]
    if not errors:
        return
    if len(errors) == 1:
        message = str(errors[0])
    else:
        message = f"{len(errors)} settings are invalid:" + "".join(f"\n  - {problem}" for problem in errors)
    raise ConfigurationError(message, setting=errors[0].setting or None, source=errors[0].source or None)
