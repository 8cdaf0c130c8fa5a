"""labels: the label of the installed app, and names derived from it.

Comes from:  Django, once it has read INSTALLED_APPS.
Goes to:     the migrations and the models.
Thread:      the one that starts Django.
"""

from __future__ import annotations

from django.apps import apps

PREDECESSOR, SUCCESS_INDEX = "django_q", "success_index"
"""The label of django-q2, and its index."""
SUCCESS = "task_success"
"""The index that django-q2 has as well."""
_LABEL_LENGTH = 12
"""Length of a label in the names of indexes, which Django limits to 30 characters."""


def label() -> str:
    """Return the label of the installed application: "qworker" or "django_q".

    Raises LookupError where it is not installed, and an error of Django's before that is set up.
    """
    config = apps.get_containing_app_config(__name__)
    if config is None:
        raise LookupError("qworker.django is not in INSTALLED_APPS")
    return str(config.label)


def index_name(of: str) -> str:
    """Return the name of an index, such as "task_name", under this label.

    SQLite and PostgreSQL keep the names of all indexes together, and tables of another label, or those of
    django-q2, may be in the same database. django-q2's own index has the name that it has there.
    """
    own = label()
    if own == PREDECESSOR and of == SUCCESS:
        return SUCCESS_INDEX
    return f"{own[:_LABEL_LENGTH]}_{of}"
