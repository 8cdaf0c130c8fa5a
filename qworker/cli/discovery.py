"""Discovery: finds the app of a command, and can explain the choice.

Comes from:  the option -A, QWORKER_APP, `[tool.qworker] app`, Django's settings module, the files of the
             working directory.
Goes to:     the command line.
Thread:      main, before anything else runs. The working directory is added to the import path. An import
             error is shown with the user's own lines of the traceback, without ours or the import
             machinery's.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary, extract_tb, format_exception_only, format_list
from types import ModuleType
from typing import NamedTuple

from qworker.app import QWorker
from qworker.conf.sources import read_tool_table
from qworker.errors import ConfigurationError, QWorkerError
from qworker.naming import close_matches

ENVIRONMENT_VARIABLE = "QWORKER_APP"

# Modules of a package that usually contain its app, most specific name first.
_SUBMODULES = ("qworker", "qworker_app", "celery", "app", "tasks")
# Files of the working directory that are examined, most specific name first.
_FILES = ("qworker_app.py", "tasks.py", "app.py")
_SETTINGS_MODULE = "DJANGO_SETTINGS_MODULE"
_NAMED_SETTINGS = re.compile(rf"""{_SETTINGS_MODULE}["'],\s*["']([\w.]+)["']""")
_OURS = str(Path(__file__).parents[1]) + os.sep
_LONGEST_SOURCE = 1_000_000  # bytes read from a file to find out whether it creates an app


DJANGO_APP = "qworker.django.project:app"
"""The app made from the settings of a Django project."""


class NoApp(ConfigurationError):
    """No app was named, and none was found."""


class AppChoice(NamedTuple):
    """An app, why it was chosen (for display), and its path "module:name" or "module" (for -A)."""

    app: QWorker
    how: str
    target: str


def find_app(option: str | None = None) -> AppChoice:
    """Return the app named by the option -A, or found without it: in the environment, pyproject.toml and the
    files of the working directory.

    Raises ConfigurationError when there is no app, when there are several, and when one cannot be imported,
    with the places searched and a suggestion.
    """
    here = import_from_here()
    target, how = _choose(option, here)
    return load(target, how, here)


def import_from_here() -> Path:
    """Add the working directory to the import path, and return it. Raises ConfigurationError when it is
    gone."""
    try:
        here = Path.cwd()
    except OSError:
        raise ConfigurationError("the working directory is gone; change to one that exists") from None
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def _choose(option: str | None, here: Path) -> tuple[str, str]:
    if option is not None:
        return option.strip(), "given on the command line"
    if named := os.environ.get(ENVIRONMENT_VARIABLE, "").strip():
        return named, f"from the environment variable {ENVIRONMENT_VARIABLE}"
    if in_pyproject := _in_pyproject(here):
        return in_pyproject, "from [tool.qworker] in pyproject.toml"
    if in_django := _in_django(here):
        return in_django
    return _in_directory(here)


def _in_pyproject(here: Path) -> str | None:
    try:
        named = read_tool_table(here).get("app")
    except ValueError as error:
        raise ConfigurationError(f"cannot read {here / 'pyproject.toml'}: {error}") from None
    if named is not None and not isinstance(named, str):
        raise ConfigurationError(
            'app in [tool.qworker] of pyproject.toml must be text such as "proj.app:app"'
        )
    return named


def _in_django(here: Path) -> tuple[str, str] | None:
    """Return the app of a Django project: its own, or the one that ``qworker.django`` makes from its
    settings."""
    settings = os.environ.get(_SETTINGS_MODULE) or _in_manage(here)
    if not settings:
        return None
    package = settings.partition(".")[0]
    for name in _submodules(package):
        if not name.endswith((".app", ".tasks")):
            return name, f"beside Django's settings {settings}"
    if not _installs_ours(settings):
        return None
    os.environ[_SETTINGS_MODULE] = settings
    return DJANGO_APP, f"made from Django's settings {settings}"


def _in_manage(here: Path) -> str:
    """Return the settings module named by manage.py; "" if there is none."""
    try:
        with (here / "manage.py").open(encoding="utf-8", errors="replace") as file:
            named = _NAMED_SETTINGS.search(file.read(_LONGEST_SOURCE))
    except OSError:
        return ""
    return named[1] if named else ""


def _installs_ours(settings: str) -> bool:
    """Return whether the settings of a project, or a file beside them, mention our package for Django."""
    try:
        found = find_spec(settings)
    except (ImportError, AttributeError, ValueError):
        return False
    if found is None or found.origin is None:
        return False
    path = Path(found.origin)
    beside = sorted(path.parent.glob("*.py")) if "settings" in (path.parent.name, path.stem) else [path]
    return any(_speaks_of(each, "qworker.django") for each in beside)


def _submodules(package: str) -> Iterator[str]:
    """Yield the modules of a package that usually contain an app; none if there is no such package."""
    if not package.isidentifier():
        return
    for name in _SUBMODULES:
        try:
            if find_spec(f"{package}.{name}") is not None:
                yield f"{package}.{name}"
        except (ImportError, AttributeError, ValueError):
            return  # no such package; if it is broken, importing it by name shows the error


def _in_directory(here: Path) -> tuple[str, str]:
    for name in _FILES:
        if _makes_app(here / name):
            return Path(name).stem, f"{name} in the working directory makes an app"
    packages = sorted(
        {path.parent.name for path in here.glob("*/__init__.py") if path.parent.name.isidentifier()}
    )
    modules = [module for package in packages if (module := _module_that_makes_app(here / package))]
    if len(modules) == 1:
        return modules[0], "the only package in the working directory that makes an app"
    if modules:
        raise ConfigurationError(
            f"{len(modules)} packages in {here} make an app; name one with -A: " + ", ".join(modules)
        )
    raise NoApp(
        f"found no app: {here} has no tasks.py, app.py, qworker_app.py or package that makes one. Name it "
        f"with -A, as in -A proj.tasks or -A path/to/file.py, or set {ENVIRONMENT_VARIABLE}. To begin, "
        "create tasks.py: qworker init project --write"
    )


def _module_that_makes_app(package: Path) -> str | None:
    if _makes_app(package / "__init__.py"):
        return package.name
    return next(
        (f"{package.name}.{name}" for name in _SUBMODULES if _makes_app(package / f"{name}.py")), None
    )


def _makes_app(path: Path) -> bool:
    """Return whether a file mentions QWorker."""
    return _speaks_of(path, "QWorker")


def _speaks_of(path: Path, word: str) -> bool:
    """Return whether *word* is in a file. The file is read, not imported, which would be unsafe."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return word in file.read(_LONGEST_SOURCE)
    except OSError:
        return False


def load(target: str, how: str, here: Path) -> AppChoice:
    """Load the app at "package.module", "package.module:name", "package.module.name" or "path/to/file.py".

    Raises ConfigurationError when there is none.
    """
    path, _, attribute = target.partition(":")
    name = _module_of_file(path, here) if path.endswith(".py") or "/" in path or os.sep in path else path
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            f"{target!r} ({how}) names no module; write it as proj.tasks, proj.tasks:app or path/to/file.py"
        )
    if not attribute:
        name, attribute = _with_attribute(name)
    module = _import(name, how, here)
    if attribute:
        return AppChoice(_named(module, attribute, how), how, f"{name}:{attribute}")
    apps = _apps_in(module)
    if not apps and hasattr(module, "__path__"):
        for submodule in _submodules(name):
            apps = _apps_in(_import(submodule, how, here))
            if apps:
                name = submodule
                break
    if len(apps) == 1:
        (attribute,) = apps
        return AppChoice(apps[attribute], how, f"{name}:{attribute}")
    if apps:
        choices = " or ".join(f"-A {name}:{attribute}" for attribute in apps)
        raise ConfigurationError(f"{name} ({how}) has {len(apps)} apps; name one: {choices}")
    celery = [key for key, value in vars(module).items() if type(value).__module__.startswith("celery.")]
    hint = f"{celery[0]} is made by Celery: make it with QWorker instead" if celery else "make one"
    raise ConfigurationError(
        f'{name} ({how}) has no app; {hint}, as in: from qworker import QWorker; app = QWorker("{name}")'
    )


def _with_attribute(name: str) -> tuple[str, str]:
    """Split "package.module.name", accepted by Celery's -A, if the last part is an attribute instead of a
    module. Otherwise return the name and "".
    """
    parent, _, last = name.rpartition(".")
    try:
        if not parent or find_spec(name) is not None:
            return name, ""
    except Exception:  # noqa: BLE001 - user code is imported; importing it again shows the error
        pass
    return (parent, last) if hasattr(sys.modules.get(parent), last) else (name, "")


def _module_of_file(text: str, here: Path) -> str:
    """Return the dotted name of a Python file, after adding its import root to the path."""
    path = (here / text).resolve()
    if path.is_dir() and (path / "__init__.py").exists():
        names, root = [path.name], path.parent
    elif path.is_file() and path.suffix == ".py":
        names, root = ([] if path.stem == "__init__" else [path.stem]), path.parent
    else:
        raise ConfigurationError(f"there is no Python file {path}")
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return ".".join(names)


def _apps_in(module: ModuleType) -> dict[str, QWorker]:
    apps: dict[str, QWorker] = {}
    for name, value in vars(module).items():
        # Compare the type itself, because `current_app` is a proxy.
        if issubclass(type(value), QWorker) and not any(value is app for app in apps.values()):
            apps[name] = value
    return apps


def _named(module: ModuleType, attribute: str, how: str) -> QWorker:
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            nearest = list(_apps_in(module)) or close_matches(part, vars(module))
            hint = f"; did you mean {module.__name__}:{nearest[0]}?" if nearest else ""
            raise ConfigurationError(f"{module.__name__} has no {attribute!r} ({how}){hint}")
        value = getattr(value, part)
    if isinstance(value, ModuleType) and len(apps := _apps_in(value)) == 1:
        (value,) = apps.values()
    if not isinstance(value, QWorker):
        raise ConfigurationError(
            f"{module.__name__}:{attribute} ({how}) is a {type(value).__name__}, not a QWorker app"
        )
    return value


def _import(name: str, how: str, here: Path) -> ModuleType:
    try:
        return import_module(name)
    except ConfigurationError as error:
        frames = _own_frames(error)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise ConfigurationError(f"{error}{where}", error.setting, error.source) from None
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            nearest = close_matches(
                name, [path.stem if path.is_file() else path.name for path in here.glob("[a-zA-Z]*")]
            )
            hint = f"did you mean {nearest[0]}?" if nearest else f"looked in {here} and on the import path"
            raise ConfigurationError(f"there is no module {name!r} ({how}); {hint}") from None
        raise ConfigurationError(import_story(name, error)) from None
    except SystemExit as error:
        message = (
            f"{name} ends the program when it is imported (exit {error.code}); put that under: if __name__ =="
        )
        raise ConfigurationError(f'{message} "__main__":') from None
    except Exception as error:  # noqa: BLE001 - the user's module is code: it may raise anything
        raise ConfigurationError(import_story(name, error)) from None


def load_tasks(app: QWorker) -> None:
    """Import every module that the app's settings name for tasks.

    Raises ConfigurationError when one cannot be imported.
    """
    try:
        app.load_tasks()
    except QWorkerError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's module again
        raise ConfigurationError(
            import_story("the modules of imports, include and autodiscover_tasks", error)
        ) from None


def _own_frames(error: Exception) -> list[FrameSummary]:
    """Return the frames of the user's code and of what it calls, without ours and the import machinery's."""
    return [
        frame
        for frame in extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS)
        and not frame.filename.startswith("<frozen importlib")
        and "importlib" not in Path(frame.filename).parts
    ]


def import_story(name: str, error: Exception) -> str:
    """Explain why a module cannot be imported, with the user's own lines of the traceback."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in {Path.cwd()} or on the import path"
    text = "".join(format_list(_own_frames(error)) + format_exception_only(error)).rstrip()
    return f"cannot import {name}:\n{text}"
