"""Settings: strict values, precedence and names of sources, collected problems, Celery's names, secrets."""

import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from qworker.conf import SETTINGS, Settings, mask, mask_urls, reference
from qworker.conf.compat import understand
from qworker.errors import ConfigurationError

KEY = "k" * 32
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


@pytest.fixture
def make(tmp_path):
    def settings(values=None, environ=None, pyproject=None, **more):
        if pyproject is not None:
            (tmp_path / "pyproject.toml").write_text(pyproject)
        return Settings({**(values or {}), **more}, environ=environ or {}, directory=tmp_path)

    return settings


def messages(settings, severity="error"):
    return [problem.message for problem in settings.problems() if problem.severity == severity]


def test_defaults_are_valid_and_their_source_is_default(make):
    conf = make()
    assert conf.problems() == []
    assert conf.task_default_queue == "celery"
    assert conf.source("task_default_queue") == "default"
    for name, setting in SETTINGS.items():
        assert conf[name] == setting.default
        if setting.default is not None:
            assert setting.read(setting.default) == setting.default, name


def test_values_are_plain_attributes_after_first_access(make):
    conf = make()
    assert "task_serializer" not in vars(conf)
    assert conf.task_serializer == "json"
    assert vars(conf)["task_serializer"] == "json"
    assert not hasattr(Settings, "task_serializer")


def test_later_sources_win(make):
    pyproject = (
        "[tool.qworker]\napp = 'proj'\nworker_concurrency = 1\ntask_default_queue = "
        "'a'\ntask_serializer='json'\n"
    )
    conf = make({"worker_concurrency": 2}, {"QWORKER_WORKER_CONCURRENCY": "3"}, pyproject)
    assert (conf.task_default_queue, conf.source("task_default_queue")) == (
        "a",
        "pyproject.toml [tool.qworker]",
    )
    assert conf.worker_concurrency == 3
    assert conf.source("worker_concurrency") == "environment variable QWORKER_WORKER_CONCURRENCY"
    conf.update(worker_concurrency=5)
    assert conf.worker_concurrency == 3
    conf.command_line({"worker_concurrency": 4, "task_time_limit": None})
    assert (conf.worker_concurrency, conf.source("worker_concurrency")) == (4, "command line")
    assert conf.source("task_time_limit") == "default"
    assert conf.problems() == []


def test_several_security_keys_in_the_environment_are_a_json_list(make):
    conf = make(environ={"QWORKER_SECURITY_KEY": f'["{KEY}", "{KEY}2"]'})
    assert conf.security_key == (KEY, f"{KEY}2")
    (problem,) = make(environ={"QWORKER_SECURITY_KEY": f"{KEY},{KEY}2"}).problems()
    assert (problem.source, problem.severity) == ("environment variable QWORKER_SECURITY_KEY", "error")
    assert KEY not in str(problem)


def test_later_assignments_in_code_win(make):
    conf = make(task_default_queue="a")
    conf.load({"task_default_queue": "b"})
    assert conf.task_default_queue == "b"
    conf.task_default_queue = "c"
    assert conf.task_default_queue == "c"
    conf["task_default_queue"] = "d"
    assert (conf.task_default_queue, conf.source("task_default_queue")) == ("d", "app.conf")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("task_always_eager", "true", True),
        ("task_always_eager", "Off", False),
        ("task_always_eager", "0", False),
        ("task_always_eager", 1, True),
        ("worker_concurrency", "10", 10),
        ("worker_concurrency", "none", None),
        ("task_time_limit", "1h30m", 5400.0),
        ("task_time_limit", timedelta(minutes=1), 60.0),
        ("result_expires", 60, 60.0),
        ("result_expires", 0, 0.0),
        ("result_expires", None, 0.0),
        ("task_unknown_delays", "1s, 2m", (1.0, 120.0)),
        ("message_max_bytes", "2MB", 2 * 1024**2),
        ("message_max_bytes", "1.5 KiB", 1536),
        ("worker_max_memory_per_child", "200MB", 200 * 1024),
        ("worker_max_memory_per_child", 12000, 12000),
        ("accept_content", "json, yaml", ("json", "yaml")),
        ("accept_content", '["json"]', ("json",)),
        ("security_key", KEY, (KEY,)),
        ("security_key", [KEY, KEY + "2"], (KEY, KEY + "2")),
        ("security_key", f'["{KEY}", "{KEY}2"]', (KEY, KEY + "2")),
        ("security_key", f'  ["{KEY}, ", "{KEY}2"]\n', (KEY + ", ", KEY + "2")),
        ("security_key", KEY.encode(), (KEY,)),
        ("task_compression", "gzip", "gzip"),
        ("result_backend", "disabled", "disabled://"),
        ("broker_url", "sqlite:////tmp/x:y.db", "sqlite:////tmp/x:y.db"),
        ("broker_url", "redis://[::1]", "redis://[::1]"),
        ("broker_url", "tls://h:4222?ssl_ca_certs=/a.pem", "tls://h:4222?ssl_ca_certs=/a.pem"),
        ("broker_url", "redis://:p?w@h:6379/0", "redis://:p?w@h:6379/0"),
        ("task_default_rate_limit", "100/m", "100/m"),
        ("task_default_rate_limit", 5, "5/s"),
        ("task_queues", ["a", "b"], {"a": {}, "b": {}}),
        ("task_queues", '{"a": {"max_priority": 3}}', {"a": {"max_priority": 3}}),
        ("task_queues", None, {}),
        (
            "task_queues",
            [
                Queue(
                    "t",
                    Exchange("e", type="topic"),
                    "t.#",
                    queue_arguments={"x-max-priority": 10},
                    message_ttl=1.5,
                )
            ],
            {
                "t": {
                    "routing_key": "t.#",
                    "exchange": "e",
                    "exchange_type": "topic",
                    "max_priority": 10,
                    "queue_arguments": {"x-max-priority": 10, "x-message-ttl": 1500},
                }
            },
        ),
        ("task_routes", {"a.*": "x"}, [{"a.*": "x"}]),
        ("task_routes", [("a.*", {"queue": "x"}), "proj.route"], [{"a.*": {"queue": "x"}}, "proj.route"]),
        (
            "task_publish_retry_policy",
            {"max_retries": 1},
            {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.5, "interval_max": 3.0},
        ),
        ("timezone", "Europe/Zurich", "Europe/Zurich"),
        ("broker_use_ssl", "false", False),
        ("broker_use_ssl", "1", True),
        ("broker_use_ssl", '{"ssl_ca_certs": "/ca.pem"}', {"ssl_ca_certs": "/ca.pem"}),
        ("redis_backend_use_ssl", {"ssl_cert_reqs": None}, {"ssl_cert_reqs": None}),
    ],
)
def test_values_are_converted_when_unambiguous(make, name, given, expected):
    conf = make({name: given})
    assert conf[name] == expected
    assert type(conf[name]) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("broker_use_ssl", "/etc/ssl/ca.pem", 'must be true, or a mapping such as {"ssl_ca_certs"'),
        ("security_key", "", "is empty: give a key, or remove the setting"),
        ("security_key", [], "must be a key, or a list"),
        ("security_key", f"{KEY},{KEY}2", "one key without quotes"),
        ("security_key", f"{KEY}\n{KEY}2", "JSON"),
        ("security_key", f"{KEY};{KEY}2", '"new key", "old key"'),
        ("security_key", f"{KEY} ", "without quotes, spaces"),
        ("security_key", f'"{KEY}"', "without quotes"),
        ("security_key", f"[{KEY}, {KEY}2]", "JSON"),
        ("security_key", f'[["{KEY}"]]', "a key, or a list"),
        ("security_key", b"\xff" * 32, "hex"),
        ("task_always_eager", "maybe", "true or false"),
        ("task_always_eager", 2, "true or false"),
        ("task_always_eager", None, "must not be None"),
        ("worker_concurrency", True, "whole number"),
        ("worker_concurrency", 1.5, "whole number"),
        ("worker_concurrency", "1e9", "whole number"),
        ("worker_concurrency", 0, "at least 1"),
        ("worker_concurrency", 10**6, "at most 1024"),
        ("task_time_limit", "soon", "duration"),
        ("task_time_limit", -1, "duration"),
        ("task_time_limit", float("nan"), "duration"),
        ("task_time_limit", True, "duration"),
        ("result_expires", -1, "must be a duration"),
        ("dead_letter_expires", 0, "at least 1"),
        ("dead_letter_expires", None, "must not be None"),
        ("message_max_bytes", "many", "size"),
        ("message_max_bytes", -5, "size"),
        ("broker_url", "", "non-empty"),
        ("broker_url", "localhost:6379", "must be a URL"),
        ("broker_url", "redis://h:99999/0", "port"),
        ("broker_url", "redis://h:http/0", "port"),
        ("broker_url", "tls://h:http?ssl_ca_certs=/a.pem", "port"),
        ("worker_pool", "gevent", "one of prefork, threads, solo"),
        ("accept_content", 5, "list"),
        ("accept_content", [5], "list of names"),
        ("task_default_queue", "a b", "must be a queue name of letters, digits"),
        ("task_queues", ["a", {"name": "a", "x": 1}], "twice"),
        ("task_queues", {"a#*": {}}, "has the queue name 'a#*'"),
        ("task_queues", {"a": 5}, "not a mapping"),
        ("task_queues", [5], "name each queue"),
        ("task_queues", "{", "JSON"),
        ("task_routes", [5], "router"),
        ("task_routes", [[("a", "b"), "c"]], "must be of pairs"),
        ("task_routes", [[["a"], ["b"]]], "must be of pairs"),
        ("task_routes", [[({}, "b"), ("c", "d")]], "must be of pairs"),
        ("task_routes", [("a", "b", "c")], "must be of pairs"),
        ("worker_prefetch_multiplier", 0, "1"),
        ("task_queues", [Broadcast("news")], "broadcast queue 'news', but broadcast queues"),
        ("task_queues", [Queue("x", Exchange("e", type="fanout"))], "broadcast queue 'x'"),
        ("task_queues", [Queue("x", [binding(Exchange("e", type="headers"))])], "kinds fanout and headers"),
        ("task_queues", {"x": {"exchange": "e", "exchange_type": "fanout"}}, "broadcast queue 'x'"),
        ("task_routes", {"a": ""}, "non-empty"),
        ("task_default_rate_limit", "fast", "rate"),
        ("task_default_rate_limit", "0/s", "rate"),
        ("task_publish_retry_policy", {"max_retry": 1}, "unknown key"),
        ("task_publish_retry_policy", {"max_retries": "x"}, "number"),
        ("timezone", "Mars/Base", "time zone"),
        ("timezone", "../etc/passwd", "time zone"),
        ("security_key", [], "key"),
    ],
)
def test_invalid_values_are_refused_with_an_explanation(make, name, given, words):
    conf = make({name: given})
    (message,) = messages(conf)
    assert name in message
    assert words in message
    with pytest.raises(ConfigurationError, match=name) as caught:
        conf.task_serializer  # noqa: B018  reading any setting validates all
    assert (caught.value.setting, caught.value.source) == (name, "QWorker(…)")


def test_all_problems_are_reported_together_with_their_sources(make):
    conf = make(
        {"worker_concurrency": 0, "task_serialiser": "json"},
        {"QWORKER_TASK_TIME_LIMIT": "x", "QWORKER_BROKR_URL": "x"},
    )
    assert [(problem.setting, problem.severity) for problem in conf.problems()] == [
        ("task_serialiser", "error"),
        ("brokr_url", "error"),
        ("worker_concurrency", "error"),
        ("task_time_limit", "error"),
    ]
    assert "did you mean task_serializer?" in messages(conf)[0]
    with pytest.raises(ConfigurationError, match="4 settings are invalid") as caught:
        conf.validate()
    assert "worker_concurrency" in str(caught.value)
    assert "environment variable QWORKER_TASK_TIME_LIMIT" in str(caught.value)


def test_invalid_update_keeps_the_previous_values(make):
    conf = make(worker_concurrency=2)
    assert conf.worker_concurrency == 2
    with pytest.raises(ConfigurationError):
        conf.update(worker_concurrency="x")
    assert conf.worker_concurrency == 2
    conf.update(task_time_limit=3)
    assert (conf.worker_concurrency, conf.task_time_limit) == (2, 3.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task_time_limit": 1, "task_soft_time_limit": 5}, "5 s) is longer than task_time_limit (1 s"),
        ({"accept_content": []}, "accept_content is empty"),
        ({"accept_content": ["json", "pickle"]}, "security_key"),
        ({"accept_content": ["json", "nonsense"]}, "not installed"),
        ({"task_serializer": "yaml"}, "does not accept"),
        ({"result_serializer": "yaml"}, "does not accept"),
        ({"task_compression": "gzpi"}, "must be one of "),
        ({"result_compression": "x"}, "must be one of "),
        ({"security_key": "short"}, "5 bytes; use at least 32"),
        ({"task_create_missing_queues": False}, "task_default_queue"),
        (
            {"task_create_missing_queues": False, "task_queues": ["celery"], "task_routes": {"a": "b"}},
            "a queue that is not in task_queues",
        ),
    ],
)
def test_contradictions_are_refused(make, values, words):
    assert any(words in message for message in messages(make(values))), messages(make(values))


def test_consistent_settings_are_accepted(make):
    good = {
        "task_time_limit": 5,
        "task_soft_time_limit": 5,
        "security_key": KEY,
        "accept_content": ["application/json", "pickle"],
        "task_serializer": "json",
        "result_accept_content": ["pickle"],
        "result_serializer": "pickle",
    }
    assert [problem for problem in make(good).problems() if problem.severity == "error"] == []


def test_old_and_new_names_of_celery_are_understood(make):
    conf = make(
        {
            "BROKER_URL": "sqlite:///x.db",
            "CELERYD_CONCURRENCY": 3,
            "CELERY_TASK_RESULT_EXPIRES": 60,
            "TASK_TIME_LIMIT": 9,
            "CELERY_TASK_TRACK_STARTED": True,
            "backend": "disabled://",
        }
    )
    assert conf.problems() == []
    assert (conf.broker_url, conf.worker_concurrency, conf.result_expires) == ("sqlite:///x.db", 3, 60.0)
    assert (conf.task_time_limit, conf.task_track_started, conf.result_backend) == (9.0, True, "disabled://")


def test_celery_settings_without_effect_are_noted_with_the_reason(make):
    conf = make(worker_state_db="x", CELERYBEAT_SYNC_EVERY=1, broker_pool_limit=3)
    assert messages(conf, "error") == messages(conf, "warning") == []
    assert len(messages(conf, "note")) == 3
    assert conf.broker_pool_limit == 3  # readable, as in Celery


def test_chord_settings_of_celery_are_noted(make):
    conf = make(result_chord_retry_interval=3, result_chord_join_timeout=5, result_chord_expires=60)
    assert messages(conf, "error") == messages(conf, "warning") == []
    assert conf.result_chord_retry_interval == 3.0
    expires, join = sorted(messages(conf, "note"))
    assert "result_expires" in expires
    assert "have ended" in join


def test_one_setting_under_two_names_must_agree(make):
    assert make(CELERY_ACKS_LATE=True, task_acks_late=True).problems() == []
    (message,) = messages(make(CELERY_ACKS_LATE=True, task_acks_late=False))
    assert "CELERY_ACKS_LATE" in message
    assert "task_acks_late" in message


def test_settings_are_loaded_from_modules_and_objects(make):
    module = ModuleType("celeryconfig")
    vars(module).update(task_default_queue="m", BASE_DIR="/", Path=Path, helper=len, TASK_SERIALISER="json")
    conf = make()
    conf.load(module)
    conf.load(SimpleNamespace(worker_concurrency=7))
    assert (conf.task_default_queue, conf.source("task_default_queue")) == ("m", "celeryconfig")
    assert (conf.worker_concurrency, conf.source("worker_concurrency")) == (7, "a SimpleNamespace")


MISSPELT = {
    "broker_ulr": "broker_url",
    "task_time_limt": "task_time_limit",
    "worker_concurency": "worker_concurrency",
    "timezon": "timezone",
    "result_backend_url": "result_backend",
    "beat_shedule": "beat_schedule",
    "redis_backend_use_sll": "redis_backend_use_ssl",
}


@pytest.mark.parametrize(("name", "expected"), MISSPELT.items())
def test_misspelt_setting_is_an_error_in_every_source(make, name, expected):
    module = ModuleType("celeryconfig")
    setattr(module, name, 1)
    in_module, in_django = make(), make()
    in_module.load(module)
    in_django.load(SimpleNamespace(**{f"CELERY_{name.upper()}": 1}), namespace="CELERY")
    for conf in (make({name: 1}), make({}, {f"QWORKER_{name.upper()}": "1"}), in_module, in_django):
        with pytest.raises(ConfigurationError, match=f"did you mean {expected}"):
            conf.timezone  # noqa: B018
    in_project = make(pyproject=f"[tool.qworker]\n{name} = 1")
    with pytest.raises(ConfigurationError, match=f"did you mean {expected}"):
        in_project.timezone  # noqa: B018


def test_transposed_letters_are_not_taken_for_a_celery_setting():
    exchanged = {name[:-3] + name[-2] + name[-3] + name[-1] for name in SETTINGS}
    assert [name for name in exchanged - {*SETTINGS} if understand(name) is not None] == []


def test_module_may_have_other_names_similar_to_settings(make):
    module = ModuleType("celeryconfig")
    vars(module).update(task_queue="mail", task_queues=["mail"], TIME_ZONE="UTC", TASK_QUEUE="x")
    conf = make()
    conf.load(module)
    assert list(conf.task_queues) == ["mail"]


def test_kubernetes_service_variables_are_ignored(make):
    names = ["PORT", "SERVICE_HOST", "SERVICE_PORT", "PORT_80_TCP", "PORT_80_TCP_PROTO", "HTTP_PORT"]
    assert messages(make({}, {f"QWORKER_{name}": "1" for name in names})) == []


def test_namespace_selects_only_its_names(make):
    conf = make()
    django = SimpleNamespace(
        CELERY_BROKER_URL="sqlite:///d.db",
        CELERY_ACKS_LATE=False,
        CELERY_TASK_TIME_LIMIT=4,
        CELERY_OWN="UTC",
        DEBUG=True,
    )
    conf.load(django, namespace="CELERY")
    assert (conf.broker_url, conf.task_acks_late, conf.task_time_limit) == ("sqlite:///d.db", False, 4.0)
    assert messages(conf, "warning") == ["unknown setting 'own'"]


def test_missing_or_raising_configuration_module_is_an_error(make, tmp_path, monkeypatch):
    (tmp_path / "broken_conf_module.py").write_text("1/0")
    monkeypatch.syspath_prepend(tmp_path)
    for name, words in (
        ("no_such_conf_module", "no_such_conf_module"),
        ("broken_conf_module", "broken_conf_module.py, line 1)"),
    ):
        conf = make()
        conf.load(name)
        (message,) = messages(conf)
        assert words in message


def test_bad_pyproject_is_an_error(make):
    assert "pyproject.toml" in messages(make(pyproject="[tool.qworker]\nx = ="))[0]
    assert "table" in messages(make(pyproject="[tool]\nqworker = 5 # tool.qworker"))[0]
    assert make(pyproject="[project]\nname = 5 5").problems() == []  # only [tool.qworker] is read


def test_unknown_settings_are_readable_only_if_given(make):
    conf = make(my_own=5)
    assert (conf.my_own, "my_own" in conf, conf.get("other", 1)) == (5, True, 1)
    with pytest.raises(AttributeError, match="did you mean task_serializer"):
        conf.task_serialiser  # noqa: B018
    with pytest.raises(KeyError):
        conf["nonsense"]
    with pytest.raises(KeyError):
        conf.source("nonsense")


def test_reading_an_unsupported_setting_explains_why() -> None:
    with pytest.raises(AttributeError, match="'broker_pool_limit' has no effect here: an app has one"):
        _ = Settings().broker_pool_limit


def test_mutable_defaults_are_not_shared(make):
    one, other = make(), make()
    one.task_queues["x"] = {}
    assert other.task_queues == {}
    assert SETTINGS["task_queues"].default == {}


def test_secrets_are_masked_in_all_outputs(make):
    conf = make(
        broker_url="redis://me:hunter2@h/0",
        security_key=KEY,
        result_backend="db+postgresql://u:hunter2@h/d?password=hunter2",
        database_engine_options={"connect_args": {"password": "hunter2"}},
    )
    for text in (repr(conf), str(conf.as_dict()), str(conf.rows())):
        assert "hunter2" not in text
        assert KEY not in text
        assert "********" in text
    assert conf.as_dict(mask=False)["broker_url"] == "redis://me:hunter2@h/0"
    wrong = make(broker_url="redis://me:hunter2@h:x/0", security_key=[5])
    assert len(messages(wrong)) == 2
    assert "hunter2" not in str(wrong.problems())


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://:pa/s@s@h:6379/0", "redis://:********@h:6379/0"),
        ("at amqp://u:p@h//, failed", "at amqp://u:********@h//, failed"),
        ("http://h:80/path", "http://h:80/path"),
        ("https://h/?api_key=abc&x=1", "https://h/?api_key=********&x=1"),
        ("plain", "plain"),
    ],
)
def test_urls_in_text_are_masked(text, masked):
    assert mask_urls(text) == masked


def test_values_of_secret_names_are_masked():
    assert mask("api_token", "x") == mask("secret_key", "x") == mask("PASSWORD", ["x"]) == "********"
    assert mask("sentry_dsn", "https://public@sentry.example/1") == "********"
    assert mask("routing_key", "x") == "x"
    assert mask("options", {"routing_key": "a", "auth": "b"}) == {"routing_key": "a", "auth": "********"}
    assert mask("security_key", None) is None


def test_committed_reference_is_up_to_date():
    assert PAGE.read_text() == reference.render(), (
        "run: python -m qworker.conf.reference > docs/reference/settings.md"
    )
    assert all(f"### `{name}`" in PAGE.read_text() for name in SETTINGS)


def test_unknown_option_of_a_route_is_a_warning(make):
    conf = make(task_routes={"a.*": {"queu": "x"}, "b": {"queue": "x", "priority": 3}, "c": "x"})
    assert messages(conf, "warning") == [
        "task_routes gives 'a.*' an option 'queu', which has no effect; did you mean queue?"
    ]


def test_concurrency_of_the_solo_pool_is_a_warning(make):
    conf = make(worker_pool="solo")
    assert conf.problems() == []
    conf.command_line({"worker_concurrency": 1})
    assert conf.problems() == []
    conf.command_line({"worker_concurrency": 4})
    assert [str(problem) for problem in conf.problems()] == [
        "worker_concurrency is 4 and has no effect: the pool solo runs one task at a time; prefork and "
        "threads run more (command line)"
    ]
    conf.command_line({"worker_pool": "threads"})
    assert conf.problems() == []


def test_old_name_of_a_setting_gets_the_new_one_suggested(make):
    with pytest.raises(KeyError, match="it is broker_url here"):
        make()["BROKER_URL"]


def test_resolved_settings_are_published_atomically(make):
    """Otherwise another thread would get an AttributeError on its first access."""
    conf = make(task_default_queue="a")
    seen = []

    def look(frame, event, argument):
        if conf._resolution is not None:
            announced = conf._resolution.values["task_default_queue"]
            seen.append(
                vars(conf).get("task_default_queue") in (announced, "b")
            )  # may be newer, but not older
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        conf.validate()
        assert conf.task_default_queue == "a"
        conf.task_default_queue = "b"
    finally:
        sys.settrace(before)
    assert conf.task_default_queue == "b"
    assert seen
    assert all(seen)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("task_send_sent_event", True),
        ("worker_send_task_events", True),
        ("task_default_exchange", "elsewhere"),
        ("task_default_routing_key", "elsewhere"),
        ("enable_utc", False),
        ("CELERYBEAT_SCHEDULER", "django_celery_beat.schedulers:DatabaseScheduler"),
        ("beat_cron_starting_deadline", 60),
        ("CELERY_RETRY_ON_WORKER_LOST", True),
        ("gcs_bucket", "b"),
    ],
)
def test_settings_without_effect_are_always_reported(make, setting, value):
    conf = make(**{setting: value})
    (message,) = messages(conf, "note") + messages(conf, "warning")
    assert "has no effect" in message


@pytest.mark.parametrize(
    "setting",
    [
        "task_send_sent_event",
        "worker_send_task_events",
        "task_default_exchange",
        "task_default_routing_key",
    ],
)
def test_docs_of_settings_without_effect_say_so(setting):
    assert SETTINGS[setting].doc.startswith("No effect")


def test_different_read_and_write_urls_are_refused(make):
    assert make(broker_read_url="redis://a").broker_url == "redis://a"
    (message,) = messages(make(broker_read_url="redis://a", broker_write_url="redis://b"))
    assert "given twice" in message


def test_path_in_place_of_a_security_key_is_refused(make):
    (message,) = messages(make(security_key="/etc/ssl/private/of-the-worker/worker.key"))
    assert "looks like the path of a key file" in message


def test_table_of_pyproject_replaced_in_code_is_a_warning(make):
    """People expect the entries of both."""
    pyproject = "[tool.qworker.beat_schedule.nightly]\ntask = 'a'\nschedule = 60\n"
    conf = make({"beat_schedule": {"hourly": {"task": "b", "schedule": 3600}}}, pyproject=pyproject)
    (problem,) = conf.problems()
    assert (problem.setting, problem.severity) == ("beat_schedule", "warning")
    assert "beat_schedule is also set in pyproject.toml [tool.qworker], which has no effect" in str(problem)
    assert list(conf.beat_schedule) == ["hourly"]
    variable = {"QWORKER_BEAT_SCHEDULE": '{"hourly": {"task": "b", "schedule": 3600}}'}
    assert make(environ=variable, pyproject=pyproject).problems() == [], "a deployment's own is meant"
