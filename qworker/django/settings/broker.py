"""broker: which broker a configuration means.

Comes from:  ``conf.py``, with the values of one cluster.
Goes to:     ``conf.broker``; the checks.
Thread:      any; nothing is kept.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

from qworker.errors import ConfigurationError
from qworker.naming import install_command


class Choice(NamedTuple):
    """A key that configures a broker.

    - broker: what ``conf.broker`` says then.
    - title: the server's name.
    - package, extra: the client library to import, and what to install to get it; "" for none.
    - beside: more keys that are this broker's, and no other's.
    """

    key: str
    broker: str
    title: str
    package: str = ""
    extra: str = ""
    beside: tuple[str, ...] = ()


CHOICES = (
    Choice("orm", "orm", "Django's database"),
    Choice("redis", "redis", "Redis", "redis", install_command("redis")),
    Choice("django_redis", "redis", "Redis", "django_redis", "pip install django-redis"),
    Choice("sqs", "sqs", "Amazon SQS", "boto3", install_command("sqs")),
    Choice(
        "disque_nodes",
        "disque",
        "Disque",
        "redis",
        install_command("disque"),
        ("disque_auth", "disque_fastack"),
    ),
    Choice("iron_mq", "ironmq", "IronMQ", "urllib3", install_command("ironmq")),
    Choice("mongo", "mongo", "MongoDB", "pymongo", install_command("mongodb"), ("mongo_db",)),
)
ORDER = ("disque_nodes", "iron_mq", "sqs", "orm", "mongo", "django_redis", "redis")
"""Keys in the order in which django-q2, and Django-Q before it, look for a broker."""
CUSTOM = Choice("broker_class", "custom", "a class of your own")


def choose(conf: Any) -> Choice:
    """What *conf*, the configuration of a cluster, says of its broker.

    Of several it is the one that django-q2 takes. Without any it is the database. ConfigurationError when
    there is a key of another that it does not name.
    """
    if conf.broker_class is not None:
        return CUSTOM
    named = named_by(conf)
    choice = named[0] if named else CHOICES[0]
    for other in CHOICES:
        # As long as it says nothing (None, "", False) it may stand there.
        lone = [key for key in other.beside if other not in (choice, *named) and getattr(conf, key)]
        if lone:
            raise ConfigurationError(
                f"Q_CLUSTER[{lone[0]!r}] is a key of {other.title}, and the broker is {choice.title}: set "
                f"{other.key!r} to use {other.title}, or take {lone[0]!r} out",
                setting=lone[0],
            )
    return choice


def named_by(conf: Any) -> list[Choice]:
    """Every broker that *conf* names, but a class of its own: the one that is used first."""
    by_key = {choice.key: choice for choice in CHOICES}
    # None is nobody's broker. An empty mapping is one with all its defaults, which django-q2 passes over when
    # there is another, but for that of SQS.
    named = [by_key[key] for key in ORDER if getattr(conf, key) is not None]
    return sorted(named, key=lambda choice: not getattr(conf, choice.key) and choice.key != "sqs")


def missing_client(choice: Choice) -> str | None:
    """What to install for *choice*, in one sentence; None when its client library is there."""
    if not choice.package or find_spec(choice.package) is not None:
        return None
    return f"Q_CLUSTER['{choice.key}'] needs the package {choice.package}: {choice.extra}"
