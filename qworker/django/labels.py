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
"""The index that django-q2 also has."""
_LABEL_LENGTH = 12
"""Characters of the label in index names, which Django limits to 30 characters."""


def label() -> str:
    """Return the label of the installed application: "qworker" or "django_q".

    Raises LookupError if it is not installed, and Django's error if Django is not set up yet.
    """
    config = apps.get_containing_app_config(__name__)
    if config is None:
        raise LookupError("qworker.django is not in INSTALLED_APPS")
    return str(config.label)


def index_name(of: str) -> str:
    """Return the name of an index, such as "task_name", under this label.

    In SQLite and PostgreSQL, index names are unique in the whole schema, which may also have the tables of
    the other label or of django-q2. django-q2's own index keeps its name.
    """
    own = label()
    if own == PREDECESSOR and of == SUCCESS:
        return SUCCESS_INDEX
    return f"{own[:_LABEL_LENGTH]}_{of}"
