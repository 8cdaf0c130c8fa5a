"""IniFile: the spooler's settings in a uWSGI ini file, and where the application is.

Comes from:  a file that uWSGI can read, too, and the files it includes.
Goes to:     ``settings``; the runner, which has to import the application.
Thread:      any.

It is read as uWSGI reads it: ``key = value``, a key alone for a flag, ``;`` and ``#`` at the beginning of a
line for comments, repeated keys, repeated sections, ``%d`` and so on, ``%(key)``, ``$(VARIABLE)``,
``set-placeholder``, and ``ini``, with a path relative to the current directory.

Intended differences: only options used here are resolved, so others may contain anything. Errors are raised
for unresolved placeholders, which uWSGI leaves unchanged; for missing sections; and for values that are not
numbers, which uWSGI reads as 0. Conditions (``if-env``), loops and ``@(file)`` are refused. ``ini =
:section`` refers to the file that contains it, not to the last file read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from qworker.conf import SETTINGS
from qworker.conf.kinds import BOOLEAN
from qworker.errors import ConfigurationError
from qworker.safe_repr import safe_repr
from qworker.spooler.options import SETTING_OF, SpoolerOptions, is_file, with_whole_paths

LONGEST_FILE = 1_048_576
"""Maximum bytes; a longer file is not a configuration."""
LONGEST_VALUE = 65_536
MOST_FILES = 64
"""Maximum number of files and sections, including nested ones."""
DEEPEST = 16

_SECTION = "uwsgi"
_FALSE = ("false", "off", "no", "0")
"""Values that turn a flag off, for uWSGI; every other value turns it on."""

_ALIASES = {
    "spooler-freq": "spooler-frequency",
    "spooler-import": "spooler-python-import",
    "spooler-pyimport": "spooler-python-import",
    "spooler-py-import": "spooler-python-import",
    "python-path": "pythonpath",
    "pp": "pythonpath",
    "wsgi": "module",
    "w": "module",
    "file": "wsgi-file",
    "pyimport": "import",
    "py-import": "import",
    "python-import": "import",
    "shared-pyimport": "shared-import",
    "shared-py-import": "shared-import",
    "shared-python-import": "shared-import",
    "home": "virtualenv",
    "pyhome": "virtualenv",
    "venv": "virtualenv",
    "set-ph": "set-placeholder",
    "include": "ini",
}
_FIELD_OF = {setting.replace("_", "-"): name for name, setting in SETTING_OF.items()}
_LISTS = frozenset(option.name for option in fields(SpoolerOptions) if isinstance(option.default, tuple))
_EMPTY_IS_UNSET = frozenset({"processes", "chdir", "max_tasks", "harakiri", "frequency", "imports"})
"""Fields that may be empty, as in uWSGI: then they count as not set."""
_APPLICATION = frozenset({"chdir", "pythonpath", "env", "module", "wsgi-file", "import", "shared-import"})
_LOGIC = re.compile(r"(end-?)?(if|for)(-.*)?", re.ASCII | re.DOTALL)
_WITHOUT_EFFECT = {
    "touch-spoolers-reload": "restart the worker instead, which lets its jobs end first",
    "spooler-cheap": "the spooler's processes stay",
    "virtualenv": "start qworker with the Python of that environment",
}
_REFERENCE = re.compile(r"([%$@])\(([^()]*)\)|%(.)", re.DOTALL)


@dataclass(frozen=True)
class IniFile:
    """The parsed file. Paths are absolute.

    - files: those that were read.
    - values: the fields of SpoolerOptions that are set.
    - chdir: where the application is started. None: not set.
    - pythonpath: directories to search for modules, after those of the interpreter.
    - env: variables to set before anything is imported.
    - module: the application's module; wsgi_file: its file. Only one is used, preferably the module.
    - imports, shared_imports: further modules or files to import; the latter first.
    - others: names of options that are not about a spooler, each once.
    - without_effect: descriptions of uWSGI's spooler options that have no effect here, with the replacement.
    """

    files: tuple[str, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    chdir: str | None = None
    pythonpath: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    module: str | None = None
    wsgi_file: str | None = None
    imports: tuple[str, ...] = ()
    shared_imports: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()


class _Line(NamedTuple):
    """One option. given: the file, as named; section: as named, '' for the default one."""

    key: str
    value: str
    file: str
    given: str
    section: str
    number: int

    def wrong(self, why: str) -> ConfigurationError:
        return _wrong(self.file, why, self.number)


def _wrong(file: str, why: str, number: int = 0) -> ConfigurationError:
    place = f"{safe_repr(file)}, line {number}" if number else safe_repr(file)
    return ConfigurationError(f"{place}: {why}", source=file)


def read_ini(*names: str, environ: Mapping[str, str] | None = None) -> IniFile:
    """Read uWSGI ini files, ``file.ini`` or ``file.ini:section``, as if they were one.

    environ: the values of ``$(VARIABLE)``; None: the process's environment. ConfigurationError for errors,
    with the line.
    """
    files: list[str] = []
    values = _Values(os.environ if environ is None else environ)
    for name in names:
        for line in _lines(name, values, files, ()):
            values.add(line)
    return _understood(values, tuple(dict.fromkeys(files)))


def _lines(
    name: str, values: _Values, files: list[str], within: tuple[tuple[str, str], ...], by: _Line | None = None
) -> Iterator[_Line]:
    """Yield the lines of a file's section, with included lines in their place."""
    given, section = _split(name)
    if not given and by is not None:
        given = by.given  # :section, of the same file

    def refuse(why: str) -> ConfigurationError:
        return by.wrong(f"{safe_repr(name)} {why}") if by else _wrong(name, f"it {why}")

    if "://" in given or given in ("", "-"):
        raise refuse("is not a file: only files are read here")
    if "\0" in name:
        raise refuse("is not a file name: it contains a NUL character")
    path = os.path.realpath(given)
    if (path, section) in within:
        raise refuse("includes itself")
    if len(within) >= DEEPEST:
        raise refuse(f"is included {DEEPEST} files deep, which is too deep")
    if len(files) >= MOST_FILES:
        raise refuse(f"exceeds the maximum of {MOST_FILES} files")
    files.append(path)
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise refuse(f"cannot be read: {reason}") from None
    found = False
    for line in _split_lines(content, path, given, section):
        if line is None:
            found = True
        elif _ALIASES.get(line.key, line.key) == "ini":
            values.add(line)
            yield from _lines(values.resolved(line), values, files, (*within, (path, section)), line)
        else:
            yield line
    if not found:
        raise refuse(f"has no section [{section or _SECTION}]")


def _split(name: str) -> tuple[str, str]:
    """Split file.ini:section into the file and the section."""
    file, colon, section = name.rpartition(":")
    return (file, section) if colon and "/" not in section else (name, "")


def _content(path: str) -> str:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("it is not a plain file")
        content = b""
        while part := os.read(file, LONGEST_FILE + 1 - len(content)):
            content += part
    finally:
        os.close(file)
    if len(content) > LONGEST_FILE:
        raise ValueError(f"it has more than {LONGEST_FILE:,} bytes, so it is not a configuration file")
    return os.fsdecode(content)


def _split_lines(content: str, file: str, given: str, section: str) -> Iterator[_Line | None]:
    """Yield the options of a section, and None for its heading."""
    here = ""
    wanted = section or _SECTION
    for number, text in enumerate(content.split("\n"), 1):
        text = text.strip()
        if "\0" in text:
            raise _wrong(file, "this is not text: it contains a NUL character", number)
        if text.startswith("["):
            here = text[1:].partition("]")[0]
            if here == wanted:
                yield None
        elif text and text[0] not in ";#" and here == wanted:
            key, _, value = text.partition("=")
            yield _Line(key.rstrip(), value.strip(), file, given, section, number)


class _Values:
    """All options so far, and the values of the placeholders in them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.lines: list[_Line] = []
        self._environ = environ
        self._first: dict[str, _Line] = {}
        self._done: dict[_Line, str] = {}

    def add(self, line: _Line) -> None:
        key = _ALIASES.get(line.key, line.key)
        if _LOGIC.fullmatch(key):
            raise line.wrong(
                f"{key} is not supported here: put the spooler's options into a section of their own, "
                "without conditions and loops, and name it as file.ini:section"
            )
        self.lines.append(line)
        self._first.setdefault(line.key, line)  # for a repeated key, %(key) is the first value
        if key in ("set-placeholder", "set"):
            name, equals, value = line.value.partition("=")
            if not equals:
                raise line.wrong(f"{line.key} needs NAME=VALUE")
            self._first.setdefault(name, line._replace(key=name, value=value))

    def resolved(self, line: _Line, depth: int = 0) -> str:
        """Return the value of an option, with its placeholders replaced."""
        if line not in self._done:
            if depth > DEEPEST:
                raise line.wrong(f"its placeholders are nested more than {DEEPEST} deep, or in a circle")
            self._done[line] = self._replaced(line, depth)
        return self._done[line]

    def _replaced(self, line: _Line, depth: int) -> str:
        parts: list[str] = []
        length = done = 0
        for match in _REFERENCE.finditer(line.value):
            parts += [line.value[done : match.start()], self._meaning(match, line, depth)]
            length += len(parts[-2]) + len(parts[-1])
            done = match.end()
            if length > LONGEST_VALUE:
                break
        parts.append(line.value[done:])
        if length + len(parts[-1]) > LONGEST_VALUE:
            raise line.wrong(f"the value has more than {LONGEST_VALUE:,} characters")
        return "".join(parts)

    def _meaning(self, match: re.Match[str], line: _Line, depth: int) -> str:
        sign, name, letter = match.groups()
        if letter is not None:
            return self._magic(letter, line)
        if sign == "@":
            raise line.wrong(f"@({safe_repr(name)}) is not supported here: write the value itself")
        if sign == "$":
            if name not in self._environ:
                raise line.wrong(f"there is no environment variable {safe_repr(name)}")
            return self._environ[name]
        if name not in self._first:
            raise line.wrong(f"%({name[:80]}) has no value: the file has no option of that name")
        return self.resolved(self._first[name], depth + 1)

    def _magic(self, letter: str, line: _Line) -> str:
        if letter not in _MAGIC:
            raise line.wrong(
                f"{safe_repr('%' + letter)} is not supported here; use one of %{', %'.join(_MAGIC)}"
            )
        return _MAGIC[letter](line)


def _user(of: str) -> str:
    import pwd  # not needed by others

    return pwd.getpwuid(os.geteuid()).pw_name if of == "name" else str(os.geteuid())


def _parent(number: int) -> Callable[[_Line], str]:
    def name(line: _Line) -> str:
        folders = line.file.split("/")[1:-1]
        return folders[number] if number < len(folders) else ""

    return name


_MAGIC: dict[str, Callable[[_Line], str]] = {
    "%": lambda line: "%",
    "o": lambda line: line.given,
    "p": lambda line: line.file,
    "s": lambda line: os.path.basename(line.file),
    "d": lambda line: os.path.dirname(line.file).rstrip("/") + "/",
    "e": lambda line: os.path.splitext(line.file)[1][1:],
    "n": lambda line: os.path.splitext(os.path.basename(line.file))[0],
    "c": lambda line: os.path.basename(os.path.dirname(line.file)),
    "x": lambda line: line.section,
    "v": lambda line: os.getcwd(),
    "h": lambda line: os.uname().nodename,
    "k": lambda line: str(os.cpu_count() or 1),
    "u": lambda line: _user("id"),
    "U": lambda line: _user("name"),
    **{str(number): _parent(number) for number in range(10)},
}


def _understood(values: _Values, files: tuple[str, ...]) -> IniFile:
    options: dict[str, Any] = {}
    application: dict[str, list[tuple[_Line, str]]] = {name: [] for name in _APPLICATION}
    others: dict[str, None] = {}
    without: dict[str, None] = {}
    for line in values.lines:
        key = _ALIASES.get(line.key, line.key)
        if key in _FIELD_OF:
            _set_option(options, _FIELD_OF[key], line, values.resolved(line))
        elif key in _APPLICATION:
            if line.value:
                application[key].append((line, values.resolved(line)))
            elif key == "chdir":  # the others then count as not set, as in uWSGI
                raise line.wrong(f"{line.key} needs a value")
        elif key in _WITHOUT_EFFECT:
            without[f"{line.key} has no effect: {_WITHOUT_EFFECT[key]}"] = None
        elif key not in ("ini", "set-placeholder", "set"):
            others[line.key] = None
    chdir = application["chdir"]
    folder = os.path.realpath(chdir[-1][1]) if chdir else None
    if folder is not None and not os.path.isdir(folder):
        raise chdir[-1][0].wrong(f"{safe_repr(folder)} is not a directory")

    def last(key: str) -> str | None:
        return application[key][-1][1] if application[key] else None

    def path(name: str) -> str:
        return os.path.realpath(os.path.join(folder or os.getcwd(), name))

    def importable(key: str) -> tuple[str, ...]:
        return tuple(path(name) if is_file(name) else name for _, name in application[key])

    module, wsgi_file = last("module"), last("wsgi-file")
    return IniFile(
        files,
        with_whole_paths(options, folder),
        folder,
        tuple(path(name) for _, name in application["pythonpath"]),
        dict(_variable(line, text) for line, text in application["env"]),
        None if module is None else module.partition(":")[0],
        None if wsgi_file is None else path(wsgi_file),
        importable("import"),
        importable("shared-import"),
        tuple(others),
        tuple(without),
    )


def _set_option(options: dict[str, Any], name: str, line: _Line, text: str) -> None:
    """Add an option of the spooler to *options*. Lists are extended; for others the last value wins."""
    setting = SETTINGS[SETTING_OF[name]]
    if setting.kind is BOOLEAN:
        options[name] = text.lower() not in _FALSE
        return
    if not text and name in _EMPTY_IS_UNSET:
        if name not in _LISTS:
            options.pop(name, None)
        return
    if not text:
        raise line.wrong(f"{line.key} needs a value")
    try:
        value = setting.read([text] if name in _LISTS and name != "socket_key" else text)
    except ValueError as error:
        joined = ", but is" if str(error).startswith("must") else ":"
        shown = "" if name == "socket_key" else f"{joined} {safe_repr(text)}"
        raise line.wrong(f"{line.key} {error}{shown}") from None
    if name in _LISTS:
        options[name] = (*options.get(name, ()), *value)
    else:
        options[name] = value
    if name in ("directories", "external"):
        options.setdefault("default", value[0])  # the first directory, of either kind


def _variable(line: _Line, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise line.wrong(f"env must be NAME=VALUE, not {safe_repr(text)}")
    return name, value
