"""What servers say of logins, in words that tell what to do."""

from __future__ import annotations

import pytest

from qworker.transports.connect_errors import MYSQL, POSTGRESQL, RABBITMQ, REDIS, Spelling, explained

MISSING = "it requires a password and got none: add it to the URL, as in"
WRONG = "the user name or password is wrong: both are in the URL, as in"
NOWHERE = "there is no such database for this user"


@pytest.mark.parametrize(
    ("said", "spelling", "meant"),
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
def test_a_refused_login_says_what_to_write_where(said: str, spelling: Spelling, meant: str) -> None:
    text = explained(said, spelling)
    assert meant in text
    assert text.endswith(f"({' '.join(said.split())})")
    assert meant in (NOWHERE, "leave it out") or spelling.login in text


@pytest.mark.parametrize(
    ("said", "meant"),
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
def test_a_server_that_cannot_be_reached_comes_with_the_next_step(said: str, meant: str) -> None:
    for spelling in (None, REDIS, RABBITMQ):
        assert meant in explained(said, spelling)
        assert said in explained(said, spelling)


def test_what_needs_a_spelling_is_not_explained_without() -> None:
    assert explained("WRONGPASS invalid username-password pair") == "WRONGPASS invalid username-password pair"
