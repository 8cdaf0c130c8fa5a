"""Sources: read settings from the places where they are given, and translate their names.

Comes from:  `[tool.qworker]` in pyproject.toml, a configuration object or module, code, `QWORKER_*`, the
             command line.
Goes to:     `resolved.Settings`, as layers; later ones override earlier ones.
Thread:      that of the first reader of a setting.

Reading a source never raises: errors become Problems, so that all are reported at once.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from qworker.conf.compat import SILENCING, understand
from qworker.conf.settings import SETTINGS
from qworker.errors import ConfigurationError
from qworker.naming import MISSPELT, close_matches, import_object

ENVIRONMENT_PREFIX = "QWORKER_"
# Variables with our prefix that are not settings.
ENVIRONMENT_RESERVED = frozenset({"APP", "CRASH_AT", "DEBUG", "HOLD_AT"})
_PACKAGE = str(Path(__file__).parents[1])
PYPROJECT_RESERVED = frozenset({"app"})


class Problem(NamedTuple):
    """A problem. severity: "error" raises, "warning" is a likely mistake, "note" is advice."""

    setting: str
    message: str
    source: str
    severity: str

    def __str__(self) -> str:
        return f"{self.message} ({self.source})" if self.source else self.message


class Given(NamedTuple):
    """A raw value, with the name of its source for display."""

    value: Any
    source: str


class Layer(NamedTuple):
    """The contents of one source: raw values by setting, values of unknown names, and problems."""

    values: dict[str, Given]
    extra: dict[str, Any]
    problems: list[Problem]


Source = Callable[[], Layer]


def translate(raw: Mapping[str, Any], label: Callable[[str], str], *, guess: bool = False) -> Layer:
    """Make a layer from names as users write them.

    - label: returns the source for a name.
    - guess (bool): ignore names that do not resemble a setting, because a module also contains imports,
      helpers and unrelated constants.

    A name that is almost that of a setting is an error. Any other unknown name is a setting of the user, with
    a warning: Kubernetes sets variables with our prefix in all containers beside a service "qworker".
    """
    values: dict[str, Given] = {}
    extra: dict[str, Any] = {}
    problems: list[Problem] = []
    spellings: dict[str, str] = {}
    for spelling, value in raw.items():
        source = label(spelling)
        known = understand(spelling)
        if known is None:
            nearest = close_matches(spelling.lower(), SETTINGS, 1)
            if guess and not nearest:
                continue
            extra[spelling] = value
            # A module may have its own similar names beside settings, such as Django's TIME_ZONE.
            own = guess and (spelling.isupper() or nearest[0] in raw)
            misspelt = not own and close_matches(spelling.lower(), nearest, 1, MISSPELT)
            severity = "error" if misspelt else "warning"
            problems.append(Problem(spelling, unknown_setting(spelling), source, severity))
        elif known.without_effect:
            extra[known.name] = value
            message = f"{spelling} has no effect: {known.without_effect}"
            severity = "warning" if known.name in SILENCING else "note"
            problems.append(Problem(known.name, message, source, severity))
        elif known.name in values and values[known.name].value != value:
            message = f"{known.name} is given twice, as {spellings[known.name]} and as {spelling}; keep one"
            problems.append(Problem(known.name, message, source, "error"))
        else:
            values[known.name] = Given(value, source)
            spellings[known.name] = spelling
    return Layer(values, extra, problems)


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise ConfigurationError for the first of the argument *names* that is not a setting of ours or
    Celery's."""
    for name in names:
        if understand(name) is None:
            raise ConfigurationError(f"QWorker(…): {unknown_setting(name)}", name, "QWorker(…)")


def unknown_setting(spelling: str) -> str:
    """Describe an unknown setting, with the most similar name."""
    nearest = close_matches(spelling.lower(), SETTINGS, 1)
    return f"unknown setting {spelling!r}" + (f"; did you mean {nearest[0]}?" if nearest else "")


def from_mapping(raw: Mapping[str, Any], label: str) -> Source:
    """Make a source of values given in code or on the command line."""
    copy = dict(raw)
    return lambda: translate(copy, lambda spelling: label)


def from_object(origin: Any, namespace: str | None = None, silent: bool = False) -> Source:
    """Make a source that reads an object, a mapping, a module, or the dotted name of one, on first use.

    namespace: "CELERY" only reads names that start with CELERY_, as in Django's settings. silent: ignore a
    missing module.
    """
    return lambda: _read_object(origin, namespace, silent)


def _read_object(origin: Any, namespace: str | None, silent: bool) -> Layer:
    label = origin if isinstance(origin, str) else _label(origin)
    if isinstance(origin, str):
        try:
            origin = import_object(origin)
        except ConfigurationError as error:  # it does not exist
            return Layer({}, {}, [] if silent else [_unreadable(label, error)])
        except Exception as error:  # noqa: BLE001
            # A configuration module is user code, and may raise anything.
            return Layer({}, {}, [_unreadable(label, error)])
    raw = dict(origin) if isinstance(origin, Mapping) else _attributes(origin)
    if namespace:
        prefix = namespace.rstrip("_").upper() + "_"
        raw = {
            _without(prefix, name): value for name, value in raw.items() if name.upper().startswith(prefix)
        }
    return translate(raw, lambda spelling: label, guess=not isinstance(origin, Mapping) and not namespace)


def _unreadable(label: str, error: Exception) -> Problem:
    text = f"cannot load the configuration {label!r}: {type(error).__name__}: {error}{_place(error)}"
    return Problem("", text, label, "error")


def _place(error: Exception) -> str:
    """Return the line of the user's file where *error* was raised, as " (file, line 3)"; "" if none."""
    frame, location = error.__traceback__, ""
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<")) and "importlib" not in Path(name).parts:
            location = f" ({name}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return location


def _without(prefix: str, name: str) -> str:
    short = name[len(prefix) :].lower()
    known = understand(short)
    return short if known is not None or understand(name) is None else name


def _label(origin: Any) -> str:
    name = getattr(origin, "__name__", None)
    return f"{name}" if isinstance(name, str) else f"a {type(origin).__name__}"


def _attributes(origin: Any) -> dict[str, Any]:
    values = {name: getattr(origin, name) for name in dir(origin) if not name.startswith("_")}
    code = (ModuleType, type, FunctionType, BuiltinFunctionType)
    return {name: value for name, value in values.items() if not isinstance(value, code) or name in SETTINGS}


def from_environment(environ: Mapping[str, str]) -> Source:
    """Make a source of the variables QWORKER_*: QWORKER_BROKER_URL is broker_url."""

    def read() -> Layer:
        raw = {
            name[len(ENVIRONMENT_PREFIX) :].lower(): value
            for name, value in environ.items()
            if name.startswith(ENVIRONMENT_PREFIX)
            and name[len(ENVIRONMENT_PREFIX) :] not in ENVIRONMENT_RESERVED
        }
        return translate(raw, lambda spelling: f"environment variable {ENVIRONMENT_PREFIX}{spelling.upper()}")

    return read


def read_tool_table(directory: Path) -> dict[str, Any]:
    """Return the table [tool.qworker] of pyproject.toml in *directory*; {} if there is none. Raises
    ValueError for invalid TOML."""
    try:
        text = (directory / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return {}
    if "tool.qworker" not in text:
        return {}  # avoids the import of tomllib
    import tomllib

    table = tomllib.loads(text).get("tool", {}).get("qworker", {})
    if not isinstance(table, dict):
        raise ValueError("tool.qworker must be a table")
    return table


def from_pyproject(directory: Path | None = None) -> Source:
    """Make a source of [tool.qworker] in pyproject.toml of *directory*; None: the working directory."""

    def read() -> Layer:
        label = "pyproject.toml"
        try:
            table = read_tool_table(directory or Path.cwd())
        except ValueError as error:
            message = f"cannot read pyproject.toml: {error}"
            return Layer({}, {}, [Problem("", message, label, "error")])
        except OSError:  # the working directory is gone
            table = {}
        raw = {name: value for name, value in table.items() if name not in PYPROJECT_RESERVED}
        return translate(raw, lambda spelling: f"{label} [tool.qworker]")

    return read
