"""Logs: the format and destination of log lines. Only this module sets handlers.

Comes from:  `setup` in the worker before its processes start, `redirect_stdouts` in each of them.
Goes to:     the terminal or a file, as text or as one JSON object per line.
Thread:      set up from the main thread; formatting happens on the logging thread.
Passwords in URLs are masked, control characters are escaped, and all lines of a record but the first are
indented, so that no text in a message can be mistaken for another record.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from logging.handlers import WatchedFileHandler
from time import gmtime, localtime, monotonic, strftime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from qworker import signals
from qworker.conf.secrets import mask, mask_urls
from qworker.errors import ConfigurationError
from qworker.message.context import current_context
from qworker.naming import close_matches

if TYPE_CHECKING:
    from qworker.conf import Settings

TASK_LOGGER = "qworker.task"
REDIRECTED_LOGGER = "qworker.redirected"

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_COLORS = {"DEBUG": "\033[34m", "WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[35m"}
_SECONDS_BETWEEN_LOOKS = 1.0
_PIPE_PATIENCE_SECONDS = 1.0
_RESET = "\033[0m"
_PROBE = logging.LogRecord("qworker", logging.INFO, __file__, 1, "probe", (), None)
_USUAL_FIELDS = frozenset(vars(_PROBE)) | {"message", "asctime", "taskName", "task_id", "task_name"}


def get_task_logger(name: str) -> logging.Logger:
    """Return a logger for a module of tasks; its level is that of "qworker.task" unless it has its own.

    Any other logger works as well: records logged while a task runs have the task's name and id.
    """
    logger = logging.getLogger(name)
    if name != TASK_LOGGER and logger.parent is logging.root:
        logger.parent = logging.getLogger(TASK_LOGGER)
    return logger


def parse_level(level: str | int) -> int:
    """Return the number of a log level, given by name (any case) or number. ConfigurationError otherwise."""
    text = str(level).strip().upper()
    if text.isdecimal() and int(text) <= logging.CRITICAL:
        return int(text)
    number = logging.getLevelNamesMapping().get(text)
    if number is None:
        hint = close_matches(text, _LEVELS) or [", ".join(_LEVELS)]
        raise ConfigurationError(f"there is no log level {level!r}; use {hint[0]}", setting="loglevel")
    return number


class SetUp(NamedTuple):
    """The arguments of setup() besides the settings."""

    level: str | int
    logfile: str | None
    json: bool | None
    node: str | None


chosen: SetUp | None = None
"""The last arguments of setup() in this process, for child processes. Written by the main thread."""


def setup(
    conf: Settings,
    level: str | int = "INFO",
    logfile: str | None = None,
    json: bool | None = None,
    node: str | None = None,
) -> None:
    """Send all logging of this process to `logfile`, or to standard error if it is None.

    - json: None for the setting `worker_log_json`.
    - node: the worker's name, for JSON lines.

    A receiver of the signal `setup_logging` replaces all this. ConfigurationError if the level, the format or
    the file cannot be used.
    """
    global chosen
    number = parse_level(level)
    chosen = SetUp(level, logfile, json, node)
    root = logging.getLogger()
    arguments = {"loglevel": number, "logfile": logfile, "format": conf.worker_log_format}
    if signals.setup_logging.receivers:
        signals.setup_logging.send(None, **arguments)
        return
    handler = _handler(logfile)
    as_json = conf.worker_log_json if json is None else json
    handler.setFormatter(JsonFormatter(node) if as_json else _line_formatter(conf, handler))
    target = root
    if conf.worker_hijack_root_logger or not root.handlers:
        _discard(root)
    else:  # leave the user's handlers alone; ours only gets the worker's own records
        target = logging.getLogger("qworker")
        target.propagate = False
        _discard(target)
    target.addHandler(handler)
    target.setLevel(number)
    signals.after_setup_logger.send(None, logger=target, **arguments)
    signals.after_setup_task_logger.send(None, logger=logging.getLogger(TASK_LOGGER), **arguments)


def _discard(logger: logging.Logger) -> None:
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        if isinstance(handler.formatter, LineFormatter | JsonFormatter):
            handler.close()  # made by an earlier setup(); the user's may be in use elsewhere


def _handler(logfile: str | None) -> logging.Handler:
    if logfile is None:
        stream = sys.__stderr__ or sys.stderr
        pipe = _own_end(stream)
        return logging.StreamHandler(stream) if pipe is None else _PipeHandler(stream, pipe)
    path = os.path.abspath(logfile)
    try:
        return _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the log file {path}: {error.strerror}", setting="logfile"
        ) from None


def _own_end(stream: IO[str] | None) -> int | None:
    """Return a non-blocking descriptor for the pipe behind *stream*; None when it is not a pipe."""
    try:
        file = stream.fileno()  # type: ignore[union-attr]
        if stat.S_ISFIFO(os.fstat(file).st_mode):
            # Opened again: the old one may be shared, and non-blocking mode would surprise its other users.
            return os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (AttributeError, OSError, ValueError):
        pass
    return None


class _PipeHandler(logging.StreamHandler[Any]):
    """Writes to a pipe. Drops lines when nobody reads it, instead of blocking the worker."""

    def __init__(self, stream: Any, pipe: int) -> None:
        super().__init__(stream)
        self._pipe = pipe
        self._dropped = 0  # under the handler's lock

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped and self._write(
                f"({self._dropped} lines were lost: nobody read them)\n".encode()
            ):
                self._dropped = 0
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            if self._dropped or not self._write(line):
                self._dropped += 1
        except OSError:
            self._dropped += 1  # the reader has gone
        except Exception:  # noqa: BLE001 - the record cannot be formatted; every handler does this
            self.handleError(record)

    def _write(self, data: bytes) -> bool:
        """Write *data*; return False if part of it was dropped. Waits for a full pipe only if no line was
        dropped before."""
        while data:
            try:
                data = data[os.write(self._pipe, data) :]
            except BlockingIOError:
                ready = select.poll()
                ready.register(self._pipe, select.POLLOUT)
                if self._dropped or not ready.poll(_PIPE_PATIENCE_SECONDS * 1000):
                    return False
        return True


class _LogFile(WatchedFileHandler):
    """A file that all processes append to, reopened when logrotate renames it."""

    _looked = 0.0

    def reopenIfNeeded(self) -> None:
        now = monotonic()
        if now - self._looked >= _SECONDS_BETWEEN_LOOKS:
            self._looked = now
            super().reopenIfNeeded()


class _SteadyFormatter(logging.Formatter):
    """A formatter that formats the time, the most expensive part, only once per second.

    The lock of its handler protects it, so handlers must not share it.
    """

    _second = -1
    _text = ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._text = strftime(datefmt or self.default_time_format, localtime(second))
        return f"{self._text},{int(record.msecs):03d}"


def _line_formatter(conf: Settings, handler: logging.Handler) -> LineFormatter:
    color = _in_color(conf.worker_log_color, handler)
    return LineFormatter(_checked(conf, "worker_log_format"), _checked(conf, "worker_task_log_format"), color)


def _checked(conf: Settings, setting: str) -> logging.Formatter:
    try:
        formatter = _SteadyFormatter(conf[setting])
        formatter.format(_with_task(_PROBE, "name", "id"))
    except (ValueError, KeyError, TypeError) as error:
        message = f"{setting} cannot be used: {error}; it is {conf[setting]!r}"
        raise ConfigurationError(message, setting, conf.source(setting)) from None
    return formatter


def _in_color(wanted: bool | None, handler: logging.Handler) -> bool:
    if wanted is not None:
        return wanted
    stream = getattr(handler, "stream", None)
    usable = stream is not None and not isinstance(handler, logging.FileHandler) and stream.isatty()
    return usable and not plain_terminal()


def plain_terminal() -> bool:
    """Whether the environment asks for text without colours: by NO_COLOR, or a terminal without them."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _with_task(record: logging.LogRecord, name: str | None, task_id: str | None) -> logging.LogRecord:
    record.__dict__.setdefault("task_name", name)
    record.__dict__.setdefault("task_id", task_id)
    return record


def _safe(text: str) -> str:
    """Return the text masked, without control characters, and with every line but the first indented."""
    text = mask_urls(text)
    if text.isprintable():
        return text
    text = text.rstrip("\n").replace("\n", "\n    ")
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


class LineFormatter(logging.Formatter):
    """Text lines. Records logged while a task runs have another format, with the task's name and id."""

    def __init__(self, plain: logging.Formatter, in_task: logging.Formatter, color: bool = False) -> None:
        super().__init__()
        self._plain = plain
        self._in_task = in_task
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        context = current_context()
        if context is None:
            line = self._plain.format(_with_task(record, None, None))
        else:
            # There is no id if the task was called as a function, or is an errback that runs here.
            line = self._in_task.format(_with_task(record, context.task, context.id or "-"))
        line = _safe(line)
        color = _COLORS.get(record.levelname) if self._color else None
        return f"{color}{line}{_RESET}" if color else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, process, and node, task and exception if
    any.

    Values given as `extra=` are included too, masked by name.
    """

    def __init__(self, node: str | None = None) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        context = current_context()
        fields: dict[str, Any] = {
            "time": strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": mask_urls(record.getMessage()),
            "process": record.process,
        }
        if self._node:
            fields["node"] = self._node
        if context is not None:
            fields["task_name"] = context.task
            fields["task_id"] = context.id
        elif (task_id := getattr(record, "task_id", None)) is not None:  # logged about a task, not by it
            fields["task_name"] = getattr(record, "task_name", None)
            fields["task_id"] = task_id
        if record.exc_info:
            fields["exception"] = mask_urls(self.formatException(record.exc_info))
        for name, value in vars(record).items():
            if name not in _USUAL_FIELDS:
                fields.setdefault(name, mask(name, value))
        return dumps(fields, default=str, ensure_ascii=False, skipkeys=True)


def redirect_stdouts(conf: Settings) -> None:
    """Send printed output to the log, if the setting `worker_redirect_stdouts` is on."""
    if not conf.worker_redirect_stdouts:
        return
    level = parse_level(conf.worker_redirect_stdouts_level)
    logger = logging.getLogger(REDIRECTED_LOGGER)
    sys.stdout = _LogStream(logger, level, sys.__stdout__)
    sys.stderr = _LogStream(logger, level, sys.__stderr__)


@contextmanager
def redirected_stdouts(conf: Settings) -> Iterator[None]:
    """redirect_stdouts() during a ``with`` block; processes forked meanwhile inherit it."""
    before = sys.stdout, sys.stderr
    redirect_stdouts(conf)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _LogStream):
                stream.flush()
        sys.stdout, sys.stderr = before


class _LogStream:
    """A text stream whose lines are log records."""

    encoding = "utf-8"
    errors = "backslashreplace"
    closed = False
    mode = "w"
    name = "<log>"

    def __init__(self, logger: logging.Logger, level: int, original: IO[str] | None) -> None:
        self._logger = logger
        self._level = level
        self._original = original
        # Per thread: the incomplete line, and a flag that keeps a handler that prints from logging its own
        # output.
        self._local = threading.local()

    def write(self, text: str) -> int:
        local = self._local
        if getattr(local, "busy", False):
            return 0
        *lines, local.rest = (getattr(local, "rest", "") + text).split("\n")
        self._log(lines)
        return len(text)

    def _log(self, lines: list[str]) -> None:
        self._local.busy = True
        try:
            for line in lines:
                if line.strip():
                    self._logger.log(self._level, "%s", line)
        finally:
            self._local.busy = False

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Log the incomplete line."""
        rest, self._local.rest = getattr(self._local, "rest", ""), ""
        if rest and not getattr(self._local, "busy", False):
            self._log([rest])

    def close(self) -> None:
        """Do nothing: standard streams stay open."""

    def isatty(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def fileno(self) -> int:
        """Return the descriptor of the original stream, for subprocesses. OSError when it has none."""
        if self._original is None:
            raise OSError("there is no stream behind the log")
        return self._original.fileno()
