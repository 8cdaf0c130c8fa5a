"""Explanations of connection errors of servers: what to do about them."""

from __future__ import annotations

import pytest

from qworker.transports.connect_errors import MYSQL, POSTGRESQL, RABBITMQ, REDIS, Spelling, explained

MISSING = "it requires a password and got none: add it to the URL, as in"
WRONG = "the user name or password is wrong: both are in the URL, as in"
NOWHERE = "there is no such database for this user"


@pytest.mark.parametrize(
    ("message", "spelling", "expected"),
    [
        ("ERR Protocol error: unauthenticated multibulk length", REDIS, MISSING),
        ("Protocol error: unauthenticated bulk length", REDIS, MISSING),
        ("NOAUTH Authentication required.", REDIS, MISSING),
        ("WRONGPASS invalid username-password pair or user is disabled.", REDIS, WRONG),
        ("invalid password", REDIS, WRONG),
        (
            "AUTH <password> called without any password configured for the default user.",
            REDIS,
            "leave it out",
        ),
        ("DB index is out of range", REDIS, NOWHERE),
        ("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.", RABBITMQ, WRONG),
        ("NOT_ALLOWED - vhost nosuch not found", RABBITMQ, NOWHERE),
        ("NOT_ALLOWED - access to vhost 'x' refused for user 'guest'", RABBITMQ, NOWHERE),
        ("connection failed: fe_sendauth: no password supplied", POSTGRESQL, MISSING),
        ('FATAL:  password authentication failed for user "x"', POSTGRESQL, WRONG),
        ('FATAL:  role "nobody" does not exist', POSTGRESQL, WRONG),
        ('FATAL:  database "nosuch" does not exist', POSTGRESQL, NOWHERE),
        ("Access denied for user 'x'@'127.0.0.1' (using password: YES)", MYSQL, WRONG),
        ("Access denied for user 'x'@'127.0.0.1' (using password: NO)", MYSQL, MISSING),
        ("Unknown database 'nosuch'", MYSQL, NOWHERE),
    ],
)
def test_refused_login_is_explained(message: str, spelling: Spelling, expected: str) -> None:
    text = explained(message, spelling)
    assert expected in text
    assert text.endswith(f"({' '.join(message.split())})")
    assert expected in (NOWHERE, "leave it out") or spelling.login in text


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Error 111 connecting to 127.0.0.1:1. Connection refused.", "start the server"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "start the server"),
        ("[Errno 111] Connect call failed ('127.0.0.1', 1)", "start the server"),
        ("Can't connect to MySQL server on '127.0.0.1' ([Errno 111] Connection refused)", "start the server"),
        ("Timeout connecting to server", "firewall"),
        ("connection timeout expired", "firewall"),
        ("[Errno 113] No route to host", "firewall"),
        ("Error -2 connecting to x:6379. Name or service not known.", "check the URL for mistakes"),
    ],
)
def test_unreachable_server_is_explained_with_the_next_step(message: str, expected: str) -> None:
    for spelling in (None, REDIS, RABBITMQ):
        assert expected in explained(message, spelling)
        assert message in explained(message, spelling)


def test_login_errors_are_only_explained_with_a_spelling() -> None:
    assert explained("WRONGPASS invalid username-password pair") == "WRONGPASS invalid username-password pair"
