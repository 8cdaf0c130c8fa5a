"""qworker's app under a custom label.

Comes from:  tests of migrations, which install it.
Goes to:     Django.
"""

from qworker.django.apps import QWorkerConfig


class JobsConfig(QWorkerConfig):
    """The label is too long to be part of index names."""

    label = "jobs_of_the_shop"
    default = False
