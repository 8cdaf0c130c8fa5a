"""Logs: safe lines with the running task, masked passwords, log files, and signals."""

import json
import logging
import sys

import pytest

from qworker import logs, signals
from qworker.conf import Settings
from qworker.errors import ConfigurationError
from qworker.message.context import Context, pop, push


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    root, ours = logging.getLogger(), logging.getLogger("qworker")
    before = root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate
    streams = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = streams
    logs._discard(root)
    root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate = before


@pytest.fixture
def conf(tmp_path):
    return Settings({"worker_log_format": "%(levelname)s %(message)s"}, environ={}, directory=tmp_path)


@pytest.fixture
def logfile(tmp_path):
    return tmp_path / "worker.log"


def test_log_file_gets_lines_from_the_given_level_on(conf, logfile):
    logs.setup(conf, "warning", str(logfile))
    logging.getLogger("x").info("hidden")
    logging.getLogger("x").warning("shown %s", 1)
    assert logfile.read_text() == "WARNING shown 1\n"


def test_trailing_newline_leaves_no_empty_line(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    logging.getLogger("x").error("raised\nTraceback:\n  KeyError\n")
    assert logfile.read_text() == "ERROR raised\n    Traceback:\n      KeyError\n"


def test_asctime_is_that_of_the_record(conf, logfile):
    conf.worker_log_format = "%(asctime)s %(message)s"
    logs.setup(conf, "INFO", str(logfile))
    (handler,) = logging.getLogger().handlers
    for created in (10.25, 10.75, 11.5):
        record = logging.makeLogRecord({"msg": "x", "created": created, "msecs": created % 1 * 1000})
        handler.handle(record)
    usual = logging.Formatter()
    times = [
        usual.formatTime(logging.makeLogRecord({"created": c, "msecs": c % 1 * 1000}))
        for c in (10.25, 10.75, 11.5)
    ]
    assert logfile.read_text().splitlines() == [f"{text} x" for text in times]


def test_rotated_log_file_is_reopened(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    (handler,) = logging.getLogger().handlers
    logging.getLogger("x").info("before")
    logfile.rename(logfile.with_suffix(".old"))
    handler._looked = 0.0  # as if a second had passed
    logging.getLogger("x").info("after")
    assert logfile.read_text() == "INFO after\n"


def test_lines_logged_in_a_task_have_its_name_and_id(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    token = push(Context(task="proj.add", id="abc"))
    try:
        logging.getLogger("any.logger").info("hello")
    finally:
        pop(token)
    logging.getLogger("any.logger").info("outside")
    inside, outside = logfile.read_text().splitlines()
    assert inside.endswith("proj.add[abc]: hello")
    assert outside == "INFO outside"


def test_lines_of_a_run_without_an_id_show_a_dash(conf, logfile):
    """Such as an errback that runs in place, or a task that is called as a function."""
    logs.setup(conf, "INFO", str(logfile))
    token = push(Context(task="proj.err"))
    try:
        logging.getLogger("any.logger").info("hello")
    finally:
        pop(token)
    assert logfile.read_text().endswith("proj.err[-]: hello\n")


def test_control_characters_are_escaped_and_passwords_masked(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    logging.getLogger("x").info("a\nINFO forged \x1b[31m\r\u202e %s", "redis://u:hunter2@h")
    text = logfile.read_text()
    assert text == "INFO a\n    INFO forged \\x1b[31m\\r\\u202e redis://u:********@h\n"


def test_tracebacks_stay_readable(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    try:
        raise ValueError("amqp://u:hunter2@h")
    except ValueError:
        logging.getLogger("x").exception("failed")
    text = logfile.read_text()
    assert text.startswith("ERROR failed\n    Traceback (most recent call last):\n")
    assert text.endswith("    ValueError: amqp://u:********@h\n")


def test_json_lines(conf, logfile):
    logs.setup(conf, "INFO", str(logfile), json=True, node="w@h")
    token = push(Context(task="proj.add", id="abc"))
    try:
        try:
            raise ValueError("x\ny")
        except ValueError:
            logging.getLogger("x").exception(
                "a\nb %s", "redis://u:hunter2@h", extra={"api_key": "k", "size": 3}
            )
    finally:
        pop(token)
    (line,) = logfile.read_text().splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record.pop("process") > 0
    assert record.pop("exception").endswith("ValueError: x\ny")
    assert record == {
        "level": "ERROR",
        "logger": "x",
        "message": "a\nb redis://u:********@h",
        "node": "w@h",
        "task_name": "proj.add",
        "task_id": "abc",
        "api_key": "********",
        "size": 3,
    }


def test_json_line_of_an_ended_task_has_its_fields(conf, logfile):
    logs.setup(conf, "INFO", str(logfile), json=True)
    ended = {"task_id": "abc", "task_name": "proj.add", "state": "SUCCESS", "runtime": 0.5, "queue": "q"}
    logging.getLogger("x").info("ended", extra={**ended, "retries": 0})
    assert {**ended, "retries": 0}.items() <= json.loads(logfile.read_text()).items()


def test_json_can_be_enabled_by_a_setting(conf, logfile):
    conf.worker_log_json = True
    logs.setup(conf, "INFO", str(logfile))
    logging.getLogger("x").info("hello")
    assert json.loads(logfile.read_text())["message"] == "hello"


def test_colour_needs_the_setting_or_a_terminal(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    logging.getLogger("x").error("plain")
    conf.worker_log_color = True
    logs.setup(conf, "INFO", str(logfile))
    logging.getLogger("x").error("red")
    assert logfile.read_text() == "ERROR plain\n\033[31mERROR red\033[0m\n"


@pytest.mark.parametrize(
    ("given", "level"), [("debug", 10), ("INFO", 20), (30, 30), ("40", 40), ("warn", 30)]
)
def test_levels_are_parsed(given, level):
    assert logs.parse_level(given) == level


@pytest.mark.parametrize("given", ["inof", "", "-1", "999"])
def test_invalid_levels_are_refused(given):
    with pytest.raises(ConfigurationError, match="INFO"):
        logs.parse_level(given)


@pytest.mark.parametrize("template", ["%(nonsense)s", "no fields", "%(message"])
def test_invalid_format_is_refused_at_once(conf, template):
    conf.worker_task_log_format = template
    with pytest.raises(ConfigurationError, match="worker_task_log_format"):
        logs.setup(conf)


def test_unwritable_log_file_is_refused(conf, tmp_path):
    with pytest.raises(ConfigurationError, match="cannot write the log file"):
        logs.setup(conf, logfile=str(tmp_path / "missing" / "x.log"))
    with pytest.raises(ConfigurationError, match="cannot write the log file"):
        logs.setup(conf, logfile=str(tmp_path))


def test_root_handlers_are_kept_without_hijack_root_logger(conf, logfile):
    theirs = logging.NullHandler()
    logging.getLogger().handlers[:] = [theirs]
    conf.worker_hijack_root_logger = False
    logs.setup(conf, "INFO", str(logfile))
    assert logging.getLogger().handlers == [theirs]
    logging.getLogger("qworker.worker").info("ours")
    logging.getLogger("theirs").info("not ours")
    assert logfile.read_text() == "INFO ours\n"


def test_signals_replace_or_extend_the_logging_setup(conf, logfile):
    seen = []

    def extend(logger, **_):
        seen.append(logger.name)

    def replace(loglevel, **_):
        seen.append(loglevel)

    signals.after_setup_logger.connect(extend)
    signals.after_setup_task_logger.connect(extend)
    logs.setup(conf, "INFO", str(logfile))
    signals.setup_logging.connect(replace)
    logs.setup(conf, "ERROR", str(logfile.parent / "other.log"))
    for signal, receiver in (
        (signals.after_setup_logger, extend),
        (signals.after_setup_task_logger, extend),
        (signals.setup_logging, replace),
    ):
        signal.disconnect(receiver)
    assert seen == ["root", "qworker.task", logging.ERROR]
    assert not (logfile.parent / "other.log").exists()


def test_task_loggers_follow_the_level_of_the_task_logger():
    logger = logs.get_task_logger("some_project_tasks")
    logging.getLogger(logs.TASK_LOGGER).setLevel("ERROR")
    try:
        assert logger.getEffectiveLevel() == logging.ERROR
    finally:
        logging.getLogger(logs.TASK_LOGGER).setLevel(logging.NOTSET)


def test_printed_lines_are_logged(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    logs.redirect_stdouts(conf)
    print("one\n\ntwo", end="")
    sys.stdout.flush()
    print("three", file=sys.stderr)
    assert logfile.read_text() == "WARNING one\nWARNING two\nWARNING three\n"
    assert not sys.stdout.isatty()


def test_stdout_is_redirected_only_within_the_block(conf, logfile):
    logs.setup(conf, "INFO", str(logfile))
    before = sys.stdout, sys.stderr
    with logs.redirected_stdouts(conf):
        print("half a line", end="")
    assert (sys.stdout, sys.stderr) == before
    assert logfile.read_text() == "WARNING half a line\n"


def test_handler_that_prints_does_not_recurse(conf):
    class Printer(logging.Handler):
        def emit(self, record):
            print("emit", record.getMessage())

    logging.getLogger().addHandler(Printer())
    logs.redirect_stdouts(conf)
    print("hello")
    assert isinstance(sys.stdout, logs._LogStream)


def test_stdout_is_not_redirected_when_disabled(conf):
    conf.worker_redirect_stdouts = False
    before = sys.stdout
    logs.redirect_stdouts(conf)
    assert sys.stdout is before
