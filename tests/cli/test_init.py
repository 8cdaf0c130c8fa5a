"""qworker init: the generated files are accepted by the programs that read them, and fit the app's broker."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from honcho.environ import parse_procfile
from jsonschema import validate
from supervisor.options import ServerOptions

from qworker import QWorker
from qworker.cli.init.commands import broker_volume
from qworker.cli.init.templates import TEMPLATES
from qworker.components.shutdown import KILL_SECONDS
from tests.cli.conftest import Run

COMMAND = ["qworker", "start", "-A", "tasks:app"]
SERVER = "redis://broker.example/0"
NASTY = """a "b" $x ${y} $(z) %d \\ 100%"""
"""Text with special characters of nearly every program that reads these files."""

INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "HEALTHCHECK", "CMD"}


# -- each file is validated by a parser of its format --


def read_systemd(path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        assert "CI" not in os.environ, "no systemd-analyze: install the package systemd"
        pytest.skip("no systemd-analyze: install the package systemd")
    found = subprocess.run([program, "verify", path], capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def read_docker(path: Path) -> None:
    """Docker itself needs its daemon for this, so this checks the part of the grammar that the file uses."""
    lines = [line.partition(" ") for line in path.read_text().splitlines() if not line.startswith("#")]
    assert {instruction for instruction, _, _ in lines} == INSTRUCTIONS
    said = {instruction: arguments for instruction, _, arguments in lines}
    assert json.loads(said["CMD"]) == COMMAND
    assert json.loads(said["HEALTHCHECK"].partition(" CMD ")[2]) == ["qworker", "health", "-A", "tasks:app"]
    assert re.fullmatch(r"\d+", said["USER"])


def schema(name: str) -> Any:
    from check_jsonschema.builtin_schemas import get_builtin_schema  # takes half a second

    return get_builtin_schema(name)


def read_compose(path: Path) -> None:
    file = yaml.safe_load(path.read_text())
    validate(file, schema("vendor.compose-spec"))
    assert file["services"]["worker"]["command"] == COMMAND


def read_procfile(path: Path) -> None:
    assert dict(parse_procfile(path.read_text()).processes) == {"worker": " ".join(COMMAND)}


def read_supervisor(path: Path) -> None:
    (program,) = supervised(path).process_configs
    assert program.command.endswith(" ".join(COMMAND))


def read_kubernetes(path: Path) -> None:
    import kubernetes_validate  # takes half a second

    for resource in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def read_github(path: Path) -> None:
    # With plain strings: `on` is a string to GitHub, and true in YAML 1.1.
    file = yaml.load(path.read_text(), yaml.BaseLoader)
    validate(file, schema("vendor.github-workflows"))


READERS = {
    "systemd": read_systemd,
    "docker": read_docker,
    "compose": read_compose,
    "procfile": read_procfile,
    "supervisor": read_supervisor,
    "k8s": read_kubernetes,
    "github-actions": read_github,
}


def test_every_kind_has_a_validator() -> None:
    assert READERS.keys() | {"project"} == TEMPLATES.keys()


@pytest.mark.parametrize("broker", [None, SERVER], ids=["file", "server"])
@pytest.mark.parametrize("kind", READERS)
def test_generated_file_is_valid(tasks, run, monkeypatch, kind, broker):
    if broker:
        monkeypatch.setenv("QWORKER_BROKER_URL", broker)
    monkeypatch.setenv("QWORKER_WORKER_LOG_FORMAT", NASTY)
    monkeypatch.setenv("QWORKER_SECURITY_KEY", "k" * 32)
    READERS[kind](written(run, kind))


# -- storage --


def test_runtime_directory_survives_a_restart_after_a_kill(tasks, run, monkeypatch):
    """With RabbitMQ, tasks that kill their whole worker are counted there."""
    monkeypatch.setenv("QWORKER_BROKER_URL", SERVER)
    deployment, *_ = resources(run)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (directory,) = [one["value"] for one in container["env"] if one["name"] == "XDG_RUNTIME_DIR"]
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == directory
    assert {"name": mount["name"], "emptyDir": {}} in pod["volumes"]
    unit = run("init", "systemd").stdout
    name = re.search(r"^RuntimeDirectory=(\S+)$", unit, re.MULTILINE)[1]
    assert f"Environment=XDG_RUNTIME_DIR=%t/{name}\n" in unit
    assert "RuntimeDirectoryPreserve=restart\n" in unit


@pytest.mark.parametrize("broker", [None, SERVER], ids=["file", "server"])
def test_file_based_broker_has_a_volume_and_a_single_worker(tasks, run, monkeypatch, broker):
    if broker:
        monkeypatch.setenv("QWORKER_BROKER_URL", broker)
    deployment, *claims = resources(run)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    service = yaml.safe_load(run("init", "compose").stdout)["services"]["worker"]
    image = run("init", "docker").stdout
    if broker:
        assert (deployment["spec"]["replicas"], service["deploy"]) == (2, {"replicas": 2})
        assert not claims
        assert "fsGroup" not in pod["securityContext"]
        assert "volumes" not in service
        assert "chown" not in image
    else:
        assert (deployment["spec"]["replicas"], "deploy" in service) == (1, False)
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/app/.qworker"]
        assert [claim["kind"] for claim in claims] == ["PersistentVolumeClaim"]
        assert service["volumes"] == ["queue:/app/.qworker"]
        assert "chown worker /app/.qworker" in image


@pytest.mark.parametrize("address", [None, "127.0.0.1:9700"])
def test_probes_use_the_http_address_of_the_worker(tasks, run, monkeypatch, address):
    if address:
        monkeypatch.setenv("QWORKER_WORKER_HTTP_ADDRESS", address)
    port = 9700 if address else 9631
    deployment, *_ = resources(run)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "QWORKER_WORKER_HTTP_ADDRESS", "value": f":{port}"}]
    assert container["ports"] == [{"name": "status", "containerPort": port}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "status"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "status"}
    assert f"QWORKER_WORKER_HTTP_ADDRESS=:{port}\n" in run("init", "docker").stdout


@pytest.mark.parametrize(
    ("url", "directory", "moved"),
    [
        (None, "/app/.qworker", None),
        ("sqlite:///data/queue.db", "/app/data", None),
        ("sqlite:////var/lib/proj/queue.db", "/var/lib/proj", None),
        ("sqlite:///queue.db", "/app/.qworker", "sqlite:////app/.qworker/queue.db"),
        ("spool:///var/spool/proj", "/var/spool/proj", None),
        (f"{SERVER};sqlite:////var/lib/proj/queue.db", "/var/lib/proj", None),
    ],
)
def test_volume_contains_the_broker_and_does_not_hide_the_project(tasks, url, directory, moved):
    volume = broker_volume(QWorker("app", broker_url=url).conf)
    assert volume is not None
    assert (str(volume.directory), volume.variables.get("QWORKER_BROKER_URL")) == (directory, moved)


@pytest.mark.parametrize("kind", ["docker", "compose", "k8s"])
def test_broker_file_beside_the_code_moves_to_the_volume(tasks, run, monkeypatch, kind):
    monkeypatch.setenv("QWORKER_BROKER_URL", "sqlite:///queue.db")
    text = run("init", kind).stdout
    assert '"sqlite:////app/.qworker/queue.db"' in text
    assert "sqlite:///queue.db" not in text


@pytest.mark.parametrize("url", [SERVER, f"{SERVER};{SERVER}", "amqp://", "sentinel://a;sentinel://b"])
def test_server_needs_no_volume(url):
    assert broker_volume(QWorker("app", broker_url=url).conf) is None


# -- the environment --


def test_environment_variables_keep_their_values(tasks, run, monkeypatch):
    monkeypatch.setenv("QWORKER_WORKER_LOG_FORMAT", NASTY)
    (program,) = supervised(written(run, "supervisor")).process_configs
    assert program.environment == {"QWORKER_WORKER_LOG_FORMAT": NASTY}
    service = yaml.safe_load(run("init", "compose").stdout)["services"]["worker"]
    assert service["environment"]["QWORKER_WORKER_LOG_FORMAT"].replace("$$", "$") == NASTY
    deployment, *_ = resources(run)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"][1]["value"].replace("$$(", "$(") == NASTY
    image = run("init", "docker").stdout
    (line,) = [line for line in image.splitlines() if line.startswith("ENV QWORKER_WORKER_LOG_FORMAT=")]
    assert shlex.split(line)[1] == f"QWORKER_WORKER_LOG_FORMAT={NASTY}".replace("$", r"\$")
    quoted = NASTY.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    assert f'Environment="QWORKER_WORKER_LOG_FORMAT={quoted}"\n' in run("init", "systemd").stdout


@pytest.mark.parametrize("kind", ["systemd", "docker", "compose", "supervisor", "k8s"])
def test_secrets_are_not_written(tasks, run, monkeypatch, kind):
    monkeypatch.setenv("QWORKER_BROKER_URL", "redis://me:hunter2@broker.example/0")
    monkeypatch.setenv("QWORKER_SECURITY_KEY", "hunter2" * 6)
    monkeypatch.setenv("QWORKER_WORKER_CONCURRENCY", "3")
    result = run("init", kind)
    assert "hunter2" not in result.stdout + result.stderr
    assert "not written to the file: QWORKER_BROKER_URL, QWORKER_SECURITY_KEY." in result.stderr
    assert "QWORKER_SECURITY_KEY" in result.stdout
    assert re.search("QWORKER_WORKER_CONCURRENCY\\b.*?3", result.stdout, re.DOTALL)


def test_kubernetes_file_explains_how_to_create_the_secret(tasks, run, monkeypatch):
    name = tasks.name.lower().replace("_", "-")
    make = f"#   kubectl create secret generic {name}-worker --from-literal=QWORKER_BROKER_URL="
    assert "kubectl" not in run("init", "k8s").stdout, "a broker that is a file has no password"
    monkeypatch.setenv("QWORKER_BROKER_URL", "redis://broker.example/0")
    assert "kubectl" not in run("init", "k8s").stdout
    monkeypatch.setenv("QWORKER_BROKER_URL", "redis://me:hunter2@broker.example/0")
    monkeypatch.setenv("QWORKER_SECURITY_KEY", "hunter2" * 6)
    result = run("init", "k8s")
    assert result.stdout.count(f"{make}'…' --from-literal=QWORKER_SECURITY_KEY='…'\n") == 1
    assert "The file says how to set them." in result.stderr
    (container,) = resources(run)[0]["spec"]["template"]["spec"]["containers"]
    assert container["env"][-1]["valueFrom"]["secretKeyRef"] == {
        "name": f"{name}-worker",
        "key": "QWORKER_SECURITY_KEY",
    }


def test_kubernetes_file_shows_the_secret_for_a_password_in_the_code(tasks, project, run):
    project(
        **{
            "tasks.py": "from qworker import QWorker\napp = QWorker('tasks', broker='redis://:hunter2@broker/0')"
        }
    )
    text = run("init", "k8s").stdout
    assert text.count("-worker --from-literal=QWORKER_BROKER_URL='redis://…'\n") == 1
    # With the comment marks removed, Kubernetes accepts the example.
    example = re.sub(
        r"^( +)# ((?:- name: QW|  ).*)$", r"\1\2", text.replace("#   kubectl", "# kubectl"), flags=re.M
    )
    (container,) = next(yaml.safe_load_all(example))["spec"]["template"]["spec"]["containers"]
    assert container["env"][-1]["valueFrom"]["secretKeyRef"]["key"] == "QWORKER_BROKER_URL"
    Path("worker.yaml").write_text(example)
    read_kubernetes(Path("worker.yaml"))


def test_values_that_supervisord_cannot_parse_are_left_out(tasks, run, monkeypatch):
    monkeypatch.setenv("QWORKER_WORKER_LOG_FORMAT", "it's")
    assert "not written to the file: QWORKER_WORKER_LOG_FORMAT." in run("init", "supervisor").stderr
    supervised(written(run, "supervisor"))


# -- the command --


def test_kubernetes_is_an_alias_of_k8s(tasks, run):
    assert run("init", "kubernetes").stdout == run("init", "k8s").stdout
    assert "kubernetes" not in run("init", "nothing").stderr


def test_kinds_are_listed(run):
    names = [line.split()[0] for line in run("init").stdout.splitlines()]
    assert names[:4] == ["kind", "project", "systemd", "docker"]


def test_stop_timeouts_cover_the_shutdown_of_the_worker(tasks, run, monkeypatch):
    monkeypatch.setenv("QWORKER_WORKER_SHUTDOWN_TIMEOUT", "2m")
    monkeypatch.setenv("QWORKER_WORKER_SOFT_SHUTDOWN_TIMEOUT", "10")
    monkeypatch.setenv("QWORKER_RESULT_BACKEND", "redis://localhost")
    monkeypatch.setenv("QWORKER_RESULT_STORE_PATIENCE", "7")
    seconds = 120 + 10 + KILL_SECONDS + 7 + KILL_SECONDS
    assert f"TimeoutStopSec={seconds:.0f}\n" in run("init", "systemd").stdout
    assert f"stopwaitsecs={seconds:.0f}\n" in run("init", "supervisor").stdout
    assert f"terminationGracePeriodSeconds: {seconds:.0f}\n" in run("init", "k8s").stdout
    assert f"stop_grace_period: {seconds:.0f}s\n" in run("init", "compose").stdout


def test_project_can_be_written_and_used(project, run):
    directory = project(README="")
    assert run("init", "project", "--write").stdout == "Wrote tasks.py.\n"
    assert run("call", "add", "1", "2").exit_code == 0
    again = run("init", "project", "--write")
    assert (again.exit_code, "--force" in again.stderr) == (1, True)
    (directory / "tasks.py").write_text("")
    assert run("init", "project", "-w", "--force").exit_code == 0
    assert "QWorker" in (directory / "tasks.py").read_text()


def test_systemd_unit_is_written_under_the_name_in_its_instructions(tasks, run):
    written = run("init", "systemd", "--write").stdout.removeprefix("Wrote ").removesuffix(".\n")
    assert f"# As root: cp {written} /etc/systemd/system/" in Path(written).read_text()
    assert written in run("init").stdout


def test_missing_app_is_mentioned_and_wrong_app_is_refused(project, run):
    project(README="")
    result = run("init", "procfile")
    assert result.stdout == "worker: qworker start -A tasks\n"
    assert "No app here yet" in result.stderr
    assert run("init", "procfile", "-A", "nope").exit_code == 1


def test_unknown_kind_is_refused(run):
    result = run("init", "sytemd")
    assert (result.exit_code, "'systemd'" in result.stderr) == (2, True)


def written(run: Run, kind: str) -> Path:
    """The file that --write creates."""
    result = run("init", kind, "--write", "--force")
    assert result.exit_code == 0, result.stderr
    return Path(result.stdout.removeprefix("Wrote ").removesuffix(".\n"))


def resources(run: Run) -> list[dict]:
    """The Kubernetes resources, the deployment first."""
    return list(yaml.safe_load_all(run("init", "k8s").stdout))


def supervised(path: Path) -> ServerOptions:
    """A program section as parsed by supervisord in a complete configuration."""
    whole = path.with_name("supervisord.conf")
    whole.write_text("[supervisord]\nuser=root\n" + path.read_text())
    options = ServerOptions()
    options.realize(["-c", str(whole)])
    return options.process_group_configs[0]


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("systemd", 0, f"ExecStart={shlex.quote(sys.executable)} manage.py qcluster\n"),
        ("procfile", 0, "worker: python manage.py qcluster\n"),
        ("supervisor", 0, "command="),
        ("docker", 1, "docs/how-to/django-production.md"),
        ("k8s", 1, "docs/how-to/django-production.md"),
    ],
)
def test_django_project_is_run_by_qcluster(tmp_path: Path, kind: str, code: int, words: str) -> None:
    """A plain worker would run its tasks, but none of its schedules."""
    (tmp_path / "manage.py").write_text("os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'settings')\n")
    (tmp_path / "settings.py").write_text(
        "SECRET_KEY = 'k' * 50\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'db.sqlite3'}}\n"
        "INSTALLED_APPS = ['qworker.django']\nQ_CLUSTER = {'orm': 'default'}\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "qworker", "init", kind]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert words in (done.stderr if code else done.stdout)
    assert "qworker start" not in done.stdout
