"""qworker's app under a label of the project's own.

Comes from:  tests of migrations, which install it.
Goes to:     Django.
"""

from qworker.django.apps import QWorkerConfig


class JobsConfig(QWorkerConfig):
    """The label is longer than names of indexes leave room for."""

    label = "jobs_of_the_shop"
    default = False
