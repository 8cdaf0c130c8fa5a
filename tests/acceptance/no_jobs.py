"""An app whose modules define no spooler function. Comes from: workers. Goes to: nothing."""

from qworker import QWorker

app = QWorker("no jobs")
