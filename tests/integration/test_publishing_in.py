"""Tasks published within the caller's transaction: sent if and only if it is committed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from qworker import QWorker, chord
from qworker.errors import ConfigurationError
from qworker.testing import StepWorker
from qworker.transports.sql.embedded import SCHEMA_VERSION
from tests.contract.place_sql import PostgreSQLPlace, SQLPlace

pytestmark = pytest.mark.integration

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


@pytest.fixture
def app(place: SQLPlace) -> Iterator[QWorker]:
    app = QWorker("shop", broker=place.url, set_as_current=False)

    @app.task(name="bill")
    def bill(number: int) -> int:
        return number

    yield app
    app.close()


@pytest.fixture
def engine(place: SQLPlace) -> Iterator[sa.Engine]:
    engine = sa.create_engine(DRIVERS[place.server] + "://" + place.url.partition("://")[2])
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (number integer)")
    yield engine
    engine.dispose()


def waiting(app: QWorker) -> int:
    return sum(info.ready + info.delayed for info in app.broker.admin.queues())


def orders(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM orders").scalar_one())


def test_rollback_discards_the_task(app: QWorker, engine: sa.Engine) -> None:
    bill = app.tasks["bill"]
    with Session(engine) as session, contextlib.suppress(ZeroDivisionError), session.begin():
        session.execute(sa.text("INSERT INTO orders VALUES (1)"))
        with app.publishing_in(session):
            bill.delay(1)
        raise ZeroDivisionError
    assert (orders(engine), waiting(app)) == (0, 0)


def test_commit_sends_the_task(app: QWorker, engine: sa.Engine) -> None:
    bill = app.tasks["bill"]
    with Session(engine) as session:
        session.execute(sa.text("INSERT INTO orders VALUES (1)"))
        with app.publishing_in(session):
            bill.delay(1)
            bill.apply_async((2,), countdown=60)
            bill.apply_many([(number,) for number in range(1200)])
        assert waiting(app) == 0
        session.commit()
    assert orders(engine) == 1
    (info,) = app.broker.admin.queues()
    assert (info.ready, info.delayed) == (1201, 1)
    with engine.begin() as connection, app.publishing_in(connection):
        bill.delay(3)
    assert waiting(app) == 1203


def test_driver_connection_is_accepted(app: QWorker, engine: sa.Engine) -> None:
    bill = app.tasks["bill"]
    with closing(engine.raw_connection().driver_connection) as connection:  # type: ignore[type-var]
        assert connection is not None
        with app.publishing_in(connection):
            bill.delay(1)
        connection.rollback()
        with app.publishing_in(connection):
            bill.delay(2)
        connection.commit()
    assert waiting(app) == 1


@pytest.mark.parametrize(
    "place", [PostgreSQLPlace], ids=["postgresql"], indirect=True
)  # MySQL has no notifications
def test_commit_notifies_a_waiting_worker(app: QWorker, engine: sa.Engine) -> None:
    app.broker.consumer.register("w@test", ["celery"], 1)
    assert not app.broker.consumer.wait(0)
    with engine.begin() as connection:
        with app.publishing_in(connection):
            app.tasks["bill"].delay(1)
        assert not app.broker.consumer.wait(0)
    assert app.broker.consumer.wait(30)
    assert len(app.broker.consumer.lease(["celery"], 10).messages) == 1


def test_other_apps_and_later_calls_are_sent_at_once(app: QWorker, engine: sa.Engine, tmp_path: Path) -> None:
    other = QWorker("other", broker=f"sqlite:///{tmp_path}/other.db", set_as_current=False)
    with Session(engine) as session:
        with app.publishing_in(session):
            other.send_task("elsewhere")
        app.tasks["bill"].delay(1)
    assert (waiting(app), waiting(other)) == (1, 1)
    other.close()


class NotAConnection:
    pass


@pytest.mark.parametrize("wrong", [NotAConnection(), None, "postgresql://"])
def test_invalid_connection_is_refused(app: QWorker, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="Session or Connection"), app.publishing_in(wrong):
        raise AssertionError


def test_connection_to_another_kind_of_database_is_refused(app: QWorker) -> None:
    engine = sa.create_engine("sqlite://")
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match="one to sqlite"),
        app.publishing_in(connection),
    ):
        raise AssertionError
    engine.dispose()


def test_sqlite_broker_refuses_other_connections(tmp_path: Path) -> None:
    app = QWorker("x", broker=f"sqlite:///{tmp_path}/q.db", set_as_current=False)
    with pytest.raises(ConfigurationError, match="the SQLite file"), app.publishing_in(object()):
        raise AssertionError
    app.close()


@pytest.mark.parametrize("isolation", ["DEFERRED", "IMMEDIATE", None])
@pytest.mark.parametrize("one", [True, False], ids=["one", "chord"])
def test_first_call_of_all_creates_the_tables_of_sqlite(
    tmp_path: Path, isolation: str | None, one: bool
) -> None:
    """In the transaction of the caller, which may hold the lock of the file already."""
    path = tmp_path / "shop.db"
    app = QWorker("shop", broker=f"sqlite:///{path}", set_as_current=False)

    @app.task(name="bill")
    def bill(*given: Any) -> Any:
        return given

    call = bill.s(1) if one else chord([bill.s(1), bill.s(2)], bill.s())
    with app, closing(sqlite3.connect(path, isolation_level=isolation)) as connection:
        connection.execute("CREATE TABLE orders (number integer)")
        connection.commit()
        for commits in (False, True):
            if isolation is None:
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES (1)")
            with app.publishing_in(connection):
                result = call.apply_async()
            connection.execute("COMMIT" if commits else "ROLLBACK")
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (1 if one else 2,)
        with StepWorker(app) as worker:
            worker.run()
        assert result.get(timeout=10) == ([1] if one else [[[1], [2]]])


def test_first_call_of_all_may_be_outside_of_a_transaction_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    app = QWorker("shop", broker=f"sqlite:///{path}", set_as_current=False)
    with app, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE orders (number integer)")
        with app.publishing_in(connection):
            app.send_task("bill")
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (1,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
