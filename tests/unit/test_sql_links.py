"""Links to SQL servers: parsing of URLs in the form of SQLAlchemy."""

from __future__ import annotations

import pytest

from qworker.beat.server_database import ServerDatabase
from qworker.clock import SYSTEM_CLOCK
from qworker.errors import ConfigurationError
from qworker.transports.sql.links import as_written_plainly, family_of


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("postgresql://a:b%40@h:1/d", "postgresql://a:b%40@h:1/d"),
        ("db+postgresql+psycopg://h/d", "postgresql://h/d"),
        ("postgresql+psycopg2://h/d?sslmode=require", "postgresql://h/d?sslmode=require"),
        ("postgresql://h/d?options=-csearch_path+x", "postgresql://h/d?options=-csearch_path%20x"),
        ("postgresql://u@/d?host=/run/pg", "postgresql://u@/d?host=%2Frun%2Fpg"),
        ("postgresql://u@/d?host=a:1&host=b:2", "postgresql://u@/d?host=a%2Cb&port=1%2C2"),
        ("postgresql://a:1,b:2/d", "postgresql://a:1,b:2/d"),
        ("db+mysql+pymysql://u@h/d?charset=utf8mb4", "mysql://u@h/d?charset=utf8mb4"),
        ("sqla+MariaDB+mysqldb://u@h/d", "mariadb://u@h/d"),
    ],
)
def test_sqlalchemy_urls_are_simplified(written: str, plain: str) -> None:
    assert as_written_plainly(written) == plain


def test_family_of_a_url() -> None:
    assert [family_of(f"{scheme}://h/d") for scheme in ("postgres", "db+postgresql", "mysql", "mariadb")] == [
        *("postgresql", "postgresql", "mysql", "mysql"),
    ]


def test_missing_certificate_files_are_reported_before_connecting() -> None:
    for url in ("db+postgresql://h/d?sslrootcert=/no/such", "mysql+pymysql://h/d?ssl_ca=/no/such"):
        with pytest.raises(ConfigurationError, match=r"^beat_store: .*/no/such") as caught:
            ServerDatabase(url, SYSTEM_CLOCK)
        assert caught.value.setting == "beat_store"
