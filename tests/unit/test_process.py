"""A worker's file names, its pid file, and its limit of open files."""

import os
import resource
import subprocess
import sys

import pytest

from qworker.cli.process import PidFile, expand_path, raise_open_files_limit
from qworker.errors import ConfigurationError

HOLD = (
    "import sys; from qworker.cli.process import PidFile\nwith PidFile(sys.argv[1]): print('held', "
    "flush=True); sys.stdin.read()"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "worker.pid"


@pytest.fixture
def holder(path):
    """A running process that holds the pid file."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_pid_file_contains_our_id_and_is_removed_on_exit(path):
    with PidFile(str(path)):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


def test_pid_file_of_a_running_process_is_rejected(path, holder):
    with pytest.raises(ConfigurationError, match=f"process id {holder.pid} is running"), PidFile(str(path)):
        pass
    assert path.read_text() == f"{holder.pid}\n"


def test_pid_file_of_a_dead_process_is_taken_over(path, holder):
    holder.kill()
    holder.wait()
    assert path.exists()
    with PidFile(str(path)):
        assert path.read_text() == f"{os.getpid()}\n"


def test_forked_child_does_not_keep_the_lock(path):
    child = HOLD.replace("print(", "__import__('os').fork() or __import__('time').sleep(60); print(")
    command = [sys.executable, "-c", child, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        process.kill()
        process.wait()
        try:
            with PidFile(str(path)):
                assert path.read_text() == f"{os.getpid()}\n"
        finally:
            os.killpg(process.pid, 9)


def test_file_replaced_by_another_process_is_not_removed(path):
    with PidFile(str(path)):
        path.unlink()
        path.write_text("other")
    assert path.read_text() == "other"


def test_longer_old_content_is_overwritten(path):
    path.write_text("9" * 30)
    with PidFile(str(path)):
        assert path.read_text() == f"{os.getpid()}\n"


def test_unsafe_pid_file_paths_are_rejected(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    os.mkfifo(tmp_path / "fifo")
    for place, why in (
        (tmp_path / "missing" / "x.pid", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "link", "symbolic link"),
        (tmp_path / "open" / "x.pid", "writable by everybody"),
        (tmp_path / "fifo", "not an ordinary file"),
    ):
        with pytest.raises(ConfigurationError, match=why), PidFile(str(place)):
            pass
    assert not path.exists()


def test_file_of_another_user_is_rejected(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    path.write_text("")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigurationError, match="another user"), PidFile(str(path)):
        pass


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("w-%n%I.log", "w-w1.log"),
        ("%h", "a.example.org"),
        ("%p.%d", "w1@a.example.org.example.org"),
        ("100%%-%i", "100%-0"),
    ],
)
def test_codes_in_file_names_are_expanded(template, expected):
    assert expand_path(template, "w1@a.example.org") == expected


@pytest.mark.parametrize("template", ["%x.log", "worker%", "%\n"])
def test_unknown_codes_are_rejected(template):
    with pytest.raises(ConfigurationError, match="unknown code"):
        expand_path(template, "w@h")


def test_open_files_limit_is_raised():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(256, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    try:
        assert raise_open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= low
        assert raise_open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
