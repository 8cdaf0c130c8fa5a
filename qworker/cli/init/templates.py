"""Templates: the texts of `qworker init`, for `string.Template`.

Comes from:  nothing.
Goes to:     init, which puts in the parts that the app's broker needs, and then the values: see `deployment`.
Thread:      constants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Variables(NamedTuple):
    """How a file sets environment variables: the text for each, from $$variable and $$value, and for one that
    must not stand in the file. quote: makes the value fit between the quotes of `plain`; None if it
    cannot. heading: goes before them all. how: says how to set those that do not stand there, from
    $$literals."""

    plain: str
    kept_out: str
    quote: Callable[[str], str | None]
    heading: str = ""
    how: str = ""


class Example(NamedTuple):
    """One file.

    - file: its usual name; $$name is the project's.
    - what: what it is for.
    - needs_app: whether it speaks of the app.
    - on_disk, on_server: parts of the text by name, for a broker that is a file and for one that is a server.
    - variables: how it sets environment variables, the part $$environment; None where it sets none.
    """

    file: str
    what: str
    text: str
    needs_app: bool = True
    on_disk: Mapping[str, str] = {}
    on_server: Mapping[str, str] = {}
    variables: Variables | None = None


def _escaped(value: str) -> str:
    """A value between double quotes, as JSON, YAML and systemd read them."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _single_quoted(value: str) -> str | None:
    """A value between single quotes for supervisord, which knows no escapes and ends a line at a comment."""
    if any(mark in value for mark in ("'", "\n", " ;", " #")):
        return None
    return value.replace("%", "%%")


_PROJECT = '''"""Tasks of this project. Run them with: qworker start"""

from qworker import QWorker

app = QWorker("tasks")


@app.task
def add(x: int, y: int) -> int:
    return x + y
'''

_SYSTEMD = """# As root: cp $name-worker.service /etc/systemd/system/ && systemctl enable --now $name-worker
[Unit]
Description=qworker of $name
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
User=$user
WorkingDirectory=$directory
# Settings of this machine, such as QWORKER_BROKER_URL=redis://…; for passwords, readable by root only.
EnvironmentFile=-/etc/default/$name-worker
${environment}ExecStart=$qworker start -A $app
# One signal is enough: the worker finishes its tasks or puts them back, and takes its processes with it.
KillMode=mixed
TimeoutStopSec=$stop
Restart=always
RestartSec=1
LimitNOFILE=65536
NoNewPrivileges=true
PrivateTmp=true
# Where a worker that is killed leaves word of what it ran: /tmp is new at each start.
RuntimeDirectory=$name-worker
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=restart
Environment=XDG_RUNTIME_DIR=%t/$name-worker

[Install]
WantedBy=multi-user.target
"""
_SYSTEMD_VARIABLES = Variables(
    'Environment="$variable=$value"\n',
    "# $variable is not written here: set it in that file.\n",
    lambda value: _escaped(value).replace("%", "%%"),
)

_DOCKER = """FROM python:$python-slim
WORKDIR /app
# requirements.txt must bring $distribution: that is what package managers call qworker.
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
RUN useradd --uid $uid worker$directories
USER $uid
ENV QWORKER_WORKER_HTTP_ADDRESS=:$port
${environment}HEALTHCHECK --start-period=20s CMD ["qworker", "health", "-A", "$app"]
# The form with brackets, so that the worker itself is process 1 and gets the signal to stop.
CMD ["qworker", "start", "-A", "$app"]
"""

_DOCKER_ON_DISK = {"directories": " && mkdir -p $volume && chown worker $volume"}
_DOCKER_ON_SERVER = {"directories": ""}
_DOCKER_VARIABLES = Variables(
    'ENV $variable="$value"\n',
    "# $variable is not written here: give it to what runs the image.\n",
    lambda value: None if "\n" in value else _escaped(value).replace("$", r"\$"),
)

_COMPOSE = """services:
  worker:
    build: .
    command: ["qworker", "start", "-A", "$app"]
    init: true
    environment:
      QWORKER_WORKER_HTTP_ADDRESS: ":$port"
${environment}    healthcheck:
      test: ["CMD", "qworker", "health", "-A", "$app"]
      start_period: 20s
    stop_grace_period: ${stop}s
    restart: unless-stopped
$held"""

_COMPOSE_ON_DISK = {
    "held": """    volumes:
      # The embedded broker: everything that sends tasks needs the same volume on the same machine.
      - queue:$volume

volumes:
  queue:
"""
}
_COMPOSE_ON_SERVER = {
    "held": """    deploy:
      replicas: 2
"""
}
_COMPOSE_VARIABLES = Variables(
    '      $variable: "$value"\n',
    "      $variable:  # not written here: it is taken from the shell or from the file .env\n",
    lambda value: _escaped(value).replace("$", "$$"),
)

_PROCFILE = """worker: qworker start -A $app
"""

_SUPERVISOR = """[program:$name-worker]
command=$qworker start -A $app
directory=$directory
user=$user
autostart=true
autorestart=true
startsecs=1
stopsignal=TERM
stopwaitsecs=$stop
redirect_stderr=true
stdout_logfile=$directory/worker.log
$environment"""
_SUPERVISOR_VARIABLES = Variables(
    "    $variable='$value',\n",
    "    ; $variable is not written here: set it where supervisord is started\n",
    _single_quoted,
    "environment=\n",
)

_KUBERNETES = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: $name-worker
spec:
$replicas  selector:
    matchLabels:
      app: $name-worker
  template:
    metadata:
      labels:
        app: $name-worker
    spec:
      terminationGracePeriodSeconds: $stop
      securityContext:
        runAsNonRoot: true
        runAsUser: $uid
${group}      containers:
        - name: worker
          image: $name:latest
          command: ["qworker", "start", "-A", "$app", "--log-json"]
          env:
            - name: QWORKER_WORKER_HTTP_ADDRESS
              value: ":$port"
${runtime}${environment}${secret}          ports:
            - name: status
              containerPort: $port
          # Not /readyz: while the broker is away, starting workers again does not help.
          livenessProbe:
            httpGet:
              path: /healthz
              port: status
            initialDelaySeconds: 10
            periodSeconds: 20
          readinessProbe:
            httpGet:
              path: /readyz
              port: status
            periodSeconds: 10
$held"""

_KUBERNETES_ON_DISK = {
    "replicas": """  # The embedded broker is a file for one pod. Set QWORKER_BROKER_URL to a server for more.
  replicas: 1
  strategy:
    type: Recreate
""",
    "group": """        # The volume belongs to this group, so that the worker may write to it.
        fsGroup: $uid
""",
    "runtime": "",
    "secret": "",
    "held": """          volumeMounts:
            - name: queue
              mountPath: $volume
      volumes:
        - name: queue
          persistentVolumeClaim:
            claimName: $name-queue
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: $name-queue
spec:
  accessModes: ["ReadWriteOnce"]
  resources:
    requests:
      storage: 1Gi
""",
}
_KUBERNETES_ON_SERVER = {
    "replicas": "  replicas: 2\n",
    "group": "",
    "runtime": """            - name: XDG_RUNTIME_DIR
              value: /run/worker
""",
    "secret": """            # What has a password, as the URL of the broker, comes from a Secret. To make it:
            #   kubectl create secret generic $name-worker --from-literal=QWORKER_BROKER_URL='redis://…'
            # - name: QWORKER_BROKER_URL
            #   valueFrom:
            #     secretKeyRef:
            #       name: $name-worker
            #       key: QWORKER_BROKER_URL
""",
    "held": """          # Where a worker that is killed leaves word of what it ran, for the next container.
          volumeMounts:
            - name: runtime
              mountPath: /run/worker
      volumes:
        - name: runtime
          emptyDir: {}
""",
}
_KUBERNETES_VARIABLES = Variables(
    '            - name: $variable\n              value: "$value"\n',
    """            - name: $variable
              valueFrom:
                secretKeyRef:
                  name: $name-worker
                  key: $variable
""",
    lambda value: _escaped(value).replace("$(", "$$("),
    how="""            # Not written here. To make the Secret, with the values:
            #   kubectl create secret generic $name-worker$literals
""",
)

_GITHUB = """name: check
on: [push, pull_request]
jobs:
  tasks:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "$python"
      # requirements.txt must bring $distribution: that is what package managers call qworker.
      - run: pip install -r requirements.txt
      - run: qworker config check -A $app
      - run: qworker doctor -A $app
"""

TEMPLATES = {
    "project": Example("tasks.py", "a first module of tasks", _PROJECT, needs_app=False),
    "systemd": Example(
        "$name-worker.service", "a service of systemd", _SYSTEMD, variables=_SYSTEMD_VARIABLES
    ),
    "docker": Example(
        "Dockerfile",
        "an image",
        _DOCKER,
        on_disk=_DOCKER_ON_DISK,
        on_server=_DOCKER_ON_SERVER,
        variables=_DOCKER_VARIABLES,
    ),
    "compose": Example(
        "compose.yaml",
        "Docker Compose",
        _COMPOSE,
        on_disk=_COMPOSE_ON_DISK,
        on_server=_COMPOSE_ON_SERVER,
        variables=_COMPOSE_VARIABLES,
    ),
    "procfile": Example("Procfile", "Heroku, foreman, honcho", _PROCFILE),
    "supervisor": Example(
        "supervisor-worker.conf", "supervisord", _SUPERVISOR, variables=_SUPERVISOR_VARIABLES
    ),
    "k8s": Example(
        "worker.k8s.yaml",
        "Kubernetes",
        _KUBERNETES,
        on_disk=_KUBERNETES_ON_DISK,
        on_server=_KUBERNETES_ON_SERVER,
        variables=_KUBERNETES_VARIABLES,
    ),
    "github-actions": Example(".github/workflows/tasks.yaml", "a check on each push", _GITHUB),
}
ALIASES = {"kubernetes": "k8s"}
