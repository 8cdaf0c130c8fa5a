"""The tests of the contract: what a broker must do for a worker, including after faults.

Comes from:  ``from qworker.testing.contract.suite import *`` in a test module with ``PLACES``.
Goes to:     pytest, which runs each test on each place.
Thread:      the test's.

Modules, in reading order: ``sending``, ``settling``, ``holding``, ``revoking``, ``notifying``,
``publishing``, ``administering``, ``presence``, ``peeking``, ``machine``, ``hostile``.
"""

from importlib import import_module

from qworker.errors import ConfigurationError
from qworker.naming import install_command

try:
    import hypothesis  # noqa: F401 - machine.py needs it; imported here for the error message
    import pytest
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"{error.name} is not installed, which the contract suite needs: {install_command('testing')}"
    ) from error

from qworker.testing.contract.collecting import pytest_generate_tests
from qworker.testing.contract.fixtures import clock, open_, other, place, store

_MODULES = (
    "sending",
    "settling",
    "holding",
    "revoking",
    "notifying",
    "publishing",
    "administering",
    "presence",
    "peeking",
    "machine",
    "hostile",
)
# Before the import, when pytest rewrites assertions.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))
_TESTS = {
    name: found
    for module in _MODULES
    for name, found in vars(import_module(f"{__name__}.{module}")).items()
    if name.startswith("test_")
}
globals().update(_TESTS)
harness = import_module(f"{__name__}.hostile").harness

__all__ = ["clock", "harness", "open_", "other", "place", "pytest_generate_tests", "store", *_TESTS]
