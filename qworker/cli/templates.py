"""Templates: the texts of `qworker init`, for `string.Template`.

Comes from:  nothing.
Goes to:     init, which fills in $$name, $$app, $$directory, $$user, $$qworker, $$distribution, $$python and
             $$stop.
Thread:      constants.
"""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """One file: its usual name ($name: the project's), what it is for, its text, and whether it speaks of the
    app."""

    file: str
    what: str
    text: str
    needs_app: bool = True


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
ExecStart=$qworker start -A $app
# One signal is enough: the worker finishes its tasks or puts them back, and takes its processes with it.
KillMode=mixed
TimeoutStopSec=$stop
Restart=always
RestartSec=1
LimitNOFILE=65536
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""

_DOCKER = """FROM python:$python-slim
WORKDIR /app
# requirements.txt must bring $distribution: that is what package managers call qworker.
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
RUN useradd --system worker && mkdir -p .qworker && chown worker .qworker
USER worker
# The form with brackets, so that the worker itself is process 1 and gets the signal to stop.
CMD ["qworker", "start", "-A", "$app"]
"""

_COMPOSE = """services:
  worker:
    build: .
    command: ["qworker", "start", "-A", "$app"]
    init: true
    stop_grace_period: ${stop}s
    restart: unless-stopped
    volumes:
      # The embedded broker: everything that sends tasks needs the same volume on the same machine.
      - queue:/app/.qworker

volumes:
  queue:
"""

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
"""

_KUBERNETES = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: $name-worker
spec:
  # The embedded broker is a file: one pod holds it. Set QWORKER_BROKER_URL to a server before you raise this.
  replicas: 1
  strategy:
    type: Recreate
  selector:
    matchLabels:
      app: $name-worker
  template:
    metadata:
      labels:
        app: $name-worker
    spec:
      terminationGracePeriodSeconds: $stop
      containers:
        - name: worker
          image: $name:latest
          command: ["qworker", "start", "-A", "$app", "--log-json"]
          volumeMounts:
            - name: queue
              mountPath: /app/.qworker
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
"""

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
    "systemd": Example("$name-worker.service", "a service of systemd", _SYSTEMD),
    "docker": Example("Dockerfile", "an image", _DOCKER),
    "compose": Example("compose.yaml", "Docker Compose", _COMPOSE),
    "procfile": Example("Procfile", "Heroku, foreman, honcho", _PROCFILE),
    "supervisor": Example("supervisor-worker.conf", "supervisord", _SUPERVISOR),
    "k8s": Example("worker.k8s.yaml", "Kubernetes", _KUBERNETES),
    "github-actions": Example(".github/workflows/tasks.yaml", "a check on each push", _GITHUB),
}
