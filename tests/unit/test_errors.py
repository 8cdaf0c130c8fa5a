"""The error classes: their hierarchy, pickling, and messages."""

from __future__ import annotations

import inspect
import pickle

import billiard.exceptions
import pytest

from qworker import errors

CLASSES = {
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == "qworker.errors"
}


@pytest.mark.parametrize("kind", sorted(CLASSES, key=lambda kind: kind.__name__))
def test_errors_survive_pickling_with_their_attributes(kind: type[BaseException]) -> None:
    error = kind("what went wrong")
    error.__dict__["noted"] = [1, 2]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("m", setting="broker_url", source="environment"),
        errors.EncodeError("m", path="args[0]", type_name="Connection"),
        errors.NotRegistered("a.b", ["a.c"]),
        errors.Retry("m", ValueError("x"), 3.0, True, {"task": "t"}),
        errors.Reject("m", requeue=True),
        errors.MaxRetriesExceeded("m", task_args=(1,), task_kwargs={"a": 1}),
    ],
)
def test_named_fields_survive_pickling(error: BaseException) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert repr(vars(again)) == repr(vars(error))
    assert vars(error)


@pytest.mark.parametrize(
    ("kind", "caught_by"),
    [
        (errors.WorkerLost, billiard.exceptions.WorkerLostError),
        (errors.TimeLimitExceeded, billiard.exceptions.TimeLimitExceeded),
        (errors.SoftTimeLimitExceeded, billiard.exceptions.SoftTimeLimitExceeded),
        (errors.Terminated, billiard.exceptions.Terminated),
        (errors.NotRegistered, KeyError),
        (errors.ResultTimeout, TimeoutError),
        (errors.NotSupported, NotImplementedError),
        (errors.TaskExpired, errors.TaskRevokedError),
        (errors.WorkerShutdown, SystemExit),
        (errors.SecurityError, errors.MessageError),
        (errors.EncodeError, errors.PublishError),
        (errors.LeaseLost, errors.TransportError),
    ],
)
def test_errors_are_caught_by_the_usual_classes(
    kind: type[BaseException], caught_by: type[BaseException]
) -> None:
    with pytest.raises(caught_by):
        raise kind("x")


@pytest.mark.parametrize("kind", [errors.SoftTimeLimitExceeded, errors.Retry, errors.Ignore, errors.Reject])
def test_directives_and_the_soft_limit_are_not_qworker_errors(kind: type[BaseException]) -> None:
    assert not issubclass(kind, errors.QWorkerError)


def test_not_registered_has_advice() -> None:
    assert str(errors.NotRegistered("proj.ad", ["proj.add"])) == (
        "no task named 'proj.ad' is registered; did you mean 'proj.add'?"
    )
    assert "imports" in str(errors.NotRegistered("proj.ad"))


@pytest.mark.parametrize(
    ("retry", "text"),
    [
        (errors.Retry(), "Retry now"),
        (errors.Retry(when=3), "Retry in 3s"),
        (errors.Retry(exc=ValueError("x"), when=0.5), "Retry in 0.5s: ValueError('x')"),
        (errors.Retry("my words", when=3), "my words"),
    ],
)
def test_retry_describes_itself(retry: errors.Retry, text: str) -> None:
    assert str(retry) == text


def test_celery_names_are_aliases_and_stored_names_are_unique() -> None:
    for name in ("WorkerLostError", "TaskRevokedError", "MaxRetriesExceededError", "TimeoutError"):
        assert getattr(errors, name) in CLASSES
    stored = [names for kind, names in errors.CELERY_NAMES.items() if kind is not errors.TaskExpired]
    assert len(set(stored)) == len(stored)
