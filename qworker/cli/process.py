"""Process: a worker's integration with the operating system: pid file, title, limits, file names.

Comes from:  the command line, before the worker is built.
Goes to:     the operating system.
Thread:      main.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from importlib import import_module
from types import TracebackType

from qworker.errors import ConfigurationError

try:
    import fcntl
    import resource
except ImportError:  # Windows has neither: no locks on pid files, no limits
    fcntl = None  # type: ignore[assignment]
    resource = None  # type: ignore[assignment]

_CODE = re.compile(r"%(.?)", re.DOTALL)


def expand_path(template: str, node: str, setting: str = "logfile") -> str:
    """Return a file name with %h (host name), %n (node name before "@"), %p (whole node name), %d (domain),
    %% expanded.

    %i and %I, Celery's index of the process, are 0 and empty: all processes of a worker write to one file.
    ConfigurationError for any other code.
    """
    name, _, host = node.partition("@")
    values = {"n": name, "h": host, "p": node, "d": host.partition(".")[2], "i": "0", "I": "", "%": "%"}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            known = " ".join(f"%{code}" for code in values)
            raise ConfigurationError(f"{template!r} has the unknown code {match[0]!r}; use {known}", setting)
        return values[match[1]]

    return _CODE.sub(value, template)


class PidFile:
    """A file that contains this process's id and is locked while it lives.

    owner: the kind of process, for messages. Raises ConfigurationError on entry when another live process
    holds it, or when it cannot be used. The file of a dead process is taken over. The lock is a record lock,
    which children do not inherit: it is released with this process, however that ends, and never with a
    child.
    """

    def __init__(self, path: str, owner: str = "worker") -> None:
        self._owner = owner
        self.path = os.path.abspath(path)
        self._descriptor: int | None = None

    def __enter__(self) -> PidFile:
        self._check_directory()
        while True:
            descriptor = self._open()
            try:
                self._lock(descriptor)
                if self._is_current(descriptor):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
                    self._descriptor = descriptor
                    return self
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its owner removed it between our opening and our locking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            if self._is_current(descriptor):
                os.unlink(self.path)
        except OSError:
            pass  # its directory is gone or read-only: the lock is what counts
        finally:
            os.close(descriptor)

    def _refusal(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"cannot use the pid file {self.path}: {why}", setting="pidfile")

    def _check_directory(self) -> None:
        directory = os.path.dirname(self.path)
        try:
            mode = os.stat(directory).st_mode
        except OSError as error:
            raise self._refusal(f"{directory}: {error.strerror}") from None
        # With the sticky bit, as on /tmp, nobody else can replace our file.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise self._refusal(f"{directory} is writable by everybody, so anybody could replace it")

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise self._refusal(str(why)) from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise self._refusal("it is not an ordinary file")
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            os.close(descriptor)
            raise self._refusal(f"it belongs to another user (id {status.st_uid})")
        return descriptor

    def _lock(self, descriptor: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise self._refusal(str(error.strerror)) from None
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise self._refusal(
                f"the {self._owner} with process id {owner} is running; stop it first"
            ) from None

    def _is_current(self, descriptor: int) -> bool:
        """Return whether the path still names the file we hold."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(descriptor))
        except FileNotFoundError:
            return False


def pidfile_owner(path: str) -> int | None:
    """Return the id of the live process that holds the pid file at *path*; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        pid = int(os.pread(descriptor, 32, 0))
        os.kill(pid, 0)
    except PermissionError:
        pass  # it is alive, as another user
    except (OSError, ValueError, OverflowError):
        os.close(descriptor)
        return None
    try:
        if fcntl is not None:
            # The number may belong to another process by now; the lock is released with its owner.
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return pid


def set_title(title: str) -> None:
    """Show `title` in ps and top, if the package setproctitle is installed."""
    try:
        import_module("setproctitle").setproctitle(title)
    except ImportError:
        pass


def raise_open_files_limit() -> int | None:
    """Raise the limit of open files to the maximum. Return it; None if unknown."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # More than this only slows down code that closes all descriptors one by one.
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft
