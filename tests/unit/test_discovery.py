"""How a command finds its app: every place in order, and the errors if none has one."""

import pytest

from qworker.cli import discovery
from qworker.cli.discovery import find_app
from qworker.errors import ConfigurationError

APP = "from qworker import QWorker\napp = QWorker('{name}')\n"


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch):
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)


def app(name):
    return APP.format(name=name)


def test_option_takes_precedence(project, monkeypatch):
    project(**{"tasks.py": app("file"), "named.py": app("option")})
    monkeypatch.setenv("QWORKER_APP", "tasks")
    found = find_app("named")
    assert (found.app.main, found.target, found.how) == ("option", "named:app", "given on the command line")


def test_order_of_environment_pyproject_django_and_files(project, monkeypatch):
    project(
        **{
            "in_environment.py": app("environment"),
            "pyproject.toml": "[tool.qworker]\napp = 'in_pyproject'\n",
            "in_pyproject.py": app("pyproject"),
            "site_of_django/__init__.py": "",
            "site_of_django/celery.py": app("django"),
            "tasks.py": app("tasks"),
        }
    )
    monkeypatch.setenv("QWORKER_APP", "in_environment")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "site_of_django.settings")
    assert find_app().app.main == "environment"
    monkeypatch.delenv("QWORKER_APP")
    assert find_app().app.main == "pyproject"
    project(**{"pyproject.toml": ""})
    assert find_app().app.main == "django"
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    found = find_app()
    assert found.app.main == "tasks"
    assert "tasks.py" in found.how


@pytest.mark.parametrize("file", ["qworker_app.py", "tasks.py", "app.py"])
def test_app_in_a_single_file(project, file):
    project(**{file: app("it"), "other.py": "1 / 0"})
    assert find_app().app.main == "it"


def test_file_without_an_app_is_not_imported(project):
    project(**{"tasks.py": "raise SystemExit", "app.py": app("it")})
    assert find_app().app.main == "it"


@pytest.mark.parametrize("module", ["__init__", "tasks", "app", "celery"])
def test_app_in_a_single_package(project, module):
    project(**{"shop/__init__.py": "", f"shop/{module}.py": app("it")})
    assert find_app().app.main == "it"


def test_several_packages_are_ambiguous(project):
    project(**{"a/__init__.py": app("a"), "b/__init__.py": "", "b/tasks.py": app("b")})
    with pytest.raises(ConfigurationError, match=r"a, b\.tasks"):
        find_app()


def test_missing_app_is_reported_with_advice(project):
    project(README="")
    with pytest.raises(ConfigurationError, match=r"-A proj\.tasks"):
        find_app()


@pytest.mark.parametrize(
    "option",
    [
        *("shop.tasks", "shop.tasks:app", "shop.tasks.app", "shop"),
        *("shop/tasks.py", "./shop/tasks.py:app", "shop/__init__.py"),
    ],
)
def test_spellings_of_the_option(project, option):
    project(**{"shop/__init__.py": "", "shop/tasks.py": app("it")})
    assert find_app(option).app.main == "it"


def test_module_takes_precedence_over_an_attribute(project):
    project(**{"shop/__init__.py": app("package"), "shop/app.py": app("module")})
    assert find_app("shop.app").target == "shop.app:app"


def test_file_in_another_directory_is_imported_by_its_package_name(project, tmp_path, monkeypatch):
    project(**{"else/where/pack/__init__.py": "", "else/where/pack/mine.py": app("it") + "name = __name__"})
    found = find_app("else/where/pack/mine.py")
    assert found.target == "pack.mine:app"


def test_current_app_proxy_is_not_taken_for_an_app(project):
    project(**{"tasks.py": app("it") + "from qworker import current_app\n"})
    assert find_app("tasks").target == "tasks:app"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("tsks", "did you mean tasks"),
        ("tasks:ap", "did you mean tasks:app"),
        ("tasks:number", "is a int, not a QWorker app"),
        ("tasks.ap", "no module 'tasks.ap'"),
        ("tasks.number", "tasks:number .* is a int, not a QWorker app"),
        ("nowhere.tasks.app", "no module 'nowhere.tasks.app'"),
        ("broken.app", "cannot import broken.app:\n"),
        ("missing.py", "no Python file"),
        ("", "names no module"),
        ("a b", "names no module"),
        ("../x", "no Python file"),
        ("empty", "has no app; make one"),
        ("two", "-A two:one or -A two:other"),
    ],
)
def test_invalid_option_is_explained(project, option, words):
    project(
        **{
            "tasks.py": app("it") + "number = 5",
            "empty.py": "",
            "broken.py": "1 / 0",
            "two.py": "from qworker import QWorker\none = QWorker('1')\nother = QWorker('2')\nagain = one\n",
        }
    )
    with pytest.raises(ConfigurationError, match=words):
        find_app(option)


def test_import_error_shows_only_lines_of_the_user(project):
    project(**{"tasks.py": "import helper\n", "helper.py": "def fail():\n    return 1 / 0\n\nfail()\n"})
    with pytest.raises(ConfigurationError) as caught:
        find_app("tasks")
    text = str(caught.value)
    assert text.startswith("cannot import tasks")
    assert text.index("tasks.py") < text.index("helper.py")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "importlib" not in text
    assert discovery.__file__ not in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "__main__"),
        ("from tasks import later\nlater = 1", "circular import"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        (
            "from qworker import QWorker\napp = QWorker('x')\n@app.task(max_retires=3)\ndef f(): ...",
            r"tasks.py, line 3",
        ),
    ],
)
def test_modules_that_cannot_be_imported(project, source, words):
    project(**{"tasks.py": source})
    with pytest.raises(ConfigurationError, match=words):
        find_app("tasks")


def test_import_error_in_a_module_from_settings_is_reported(project):
    project(**{"tasks.py": app("it") + "app.conf.imports = ['more']", "more.py": "1 / 0"})
    found = find_app("tasks")
    with pytest.raises(ConfigurationError, match="ZeroDivisionError"):
        discovery.load_tasks(found.app)


def test_invalid_pyproject_is_refused(project):
    project(**{"pyproject.toml": "[tool.qworker]\napp = 5"})
    with pytest.raises(ConfigurationError, match="must be text"):
        find_app()
    project(**{"pyproject.toml": "[tool.qworker]\napp = ="})
    with pytest.raises(ConfigurationError, match=r"pyproject\.toml"):
        find_app()


def test_celery_app_is_recognised(project):
    project(
        **{
            "tasks.py": "class Celery: ...\nCelery.__module__ = 'celery.app.base'\ncelery_app = Celery()  # "
            "no QWorker here",
        }
    )
    with pytest.raises(ConfigurationError, match="celery_app is made by Celery"):
        find_app("tasks")
