"""An app whose modules set no function that runs jobs. Comes from: workers. Goes to: nothing."""

from qworker import QWorker

app = QWorker("no jobs")
