"""Signing: round trips, compatibility with django-q2, and rejection of damaged or foreign packages."""

from __future__ import annotations

import pickle
from base64 import urlsafe_b64decode

import pytest
from django.core import signing as djangos
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from qworker.django.conf import Conf
from qworker.django.signing import BadSignature, PickleSerializer, SignedPackage

THEIR_KEY = "abc" * 10
THEIRS = {
    # Made by django-q2 1.11 with that key and the name "nm".
    "gAWVSAAAAAAAAAB9lCiMAmlklIwgYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWGUjARhcmdzlEsBjALDqZSGlIwGa3dhcmdzlH2U"
    "dS4:1xViZr:o1cbgNoMxuCAiwbcCBF4ACrhL3bD_waD3hoVQAecAJA": {
        "id": "a" * 32,
        "args": (1, "é"),
        "kwargs": {},
    },
    ".eJxrYJ06lZEBDGKnaHgzjsLBBFP1AJCkPr0:1xViZr:_RqXGx6-0-Zx_e3dYy0qZ_VvhuqC1dJrACY_-KhAG24": [1] * 200,
}

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.complex_numbers(allow_nan=False),
    st.uuids(),
    st.decimals(allow_nan=False),
)
picklable = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(plain)
        | st.builds(ValueError, inner).map(lambda error: error.args)
    ),
    max_leaves=20,
)


class Bomb:
    """Counts how often it is unpickled."""

    gone_off = 0

    def __reduce__(self):
        return Bomb.go_off, ()

    @staticmethod
    def go_off():
        Bomb.gone_off += 1


@given(picklable, st.booleans())
def test_picklable_objects_round_trip(obj, compressed):
    package = SignedPackage.dumps(obj, compressed)
    assert type(package) is str
    assert package.isascii()
    assert SignedPackage.loads(package) == obj
    assert SignedPackage.loads(package.encode()) == obj


def test_functions_and_classes_are_pickled_by_name():
    assert SignedPackage.loads(SignedPackage.dumps((Bomb, len, pytest.raises))) == (Bomb, len, pytest.raises)


@pytest.mark.parametrize("package", THEIRS, ids=["plain", "compressed"])
def test_packages_of_django_q2_are_read(cluster, package):
    cluster(name="nm")
    with override_settings(SECRET_KEY=THEIR_KEY):
        assert SignedPackage.loads(package) == THEIRS[package]


@pytest.mark.parametrize("compressed", [False, True])
def test_packages_are_compatible_with_django_q2(cluster, compressed):
    """Packages are signed objects of Django, pickled, with the cluster name as salt."""
    cluster(name="nm")
    package = SignedPackage.dumps([1] * 200, compressed)
    assert djangos.loads(package, salt="nm", serializer=PickleSerializer) == [1] * 200


def test_packages_are_compressed_on_request_or_by_setting(cluster):
    long = ["the same"] * 500
    cluster()
    assert not SignedPackage.dumps(long).startswith(".")
    assert SignedPackage.dumps(long, True).startswith(".")
    cluster(compress=True)
    assert SignedPackage.dumps(long).startswith(".")
    assert len(SignedPackage.dumps(long)) < 300
    assert not SignedPackage.dumps(long, False).startswith(".")


def test_pickle_protocol_is_readable_by_older_pythons():
    body = SignedPackage.dumps({}).partition(":")[0]
    data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    assert data[:2] == b"\x80\x05"
    assert pickle.loads(data) == {}


@given(st.data())
def test_damaged_package_is_rejected(data):
    package = SignedPackage.dumps({"id": "a", "args": (1, 2)})
    at = data.draw(st.integers(0, len(package) - 1))
    character = data.draw(st.characters().filter(lambda found: found != package[at]))
    damaged = data.draw(
        st.sampled_from(
            [
                package[:at] + character + package[at + 1 :],
                package[:at] + character + package[at:],
                package[:at] + package[at + 1 :],
                package[:at],
            ]
        )
    )
    if damaged == package:  # a character was inserted next to an equal one
        return
    with pytest.raises(BadSignature):
        SignedPackage.loads(damaged)


@given(st.one_of(st.text(), st.binary(), st.none(), st.integers(), st.text(":abc=.", max_size=20)))
def test_arbitrary_values_are_rejected(anything):
    with pytest.raises(BadSignature):
        SignedPackage.loads(anything)


def test_invalid_text_is_rejected():
    for text in ("\ud800:b:c", b"\xff:b:c"):
        with pytest.raises(BadSignature):
            SignedPackage.loads(text)


@pytest.mark.parametrize("other", [{"key": "another key"}, {"salt": "another name"}])
def test_package_signed_by_others_is_not_unpickled(cluster, other):
    cluster(name="nm")
    with override_settings(SECRET_KEY=THEIR_KEY):
        ours = djangos.TimestampSigner(**{"key": THEIR_KEY, "salt": "nm", **other})
        package = ours.sign_object(Bomb(), serializer=PickleSerializer)
        with pytest.raises(BadSignature):
            SignedPackage.loads(package)
    assert Bomb.gone_off == 0


def test_fallback_keys_are_accepted():
    with override_settings(SECRET_KEY="old"):
        package = SignedPackage.dumps(1)
    with override_settings(SECRET_KEY="new"):
        with pytest.raises(BadSignature):
            SignedPackage.loads(package)
        with override_settings(SECRET_KEY_FALLBACKS=["older", "old"]):
            assert SignedPackage.loads(package) == 1
            assert djangos.loads(
                SignedPackage.dumps(2), key="new", salt="default", serializer=PickleSerializer
            )
        with pytest.raises(BadSignature):
            SignedPackage.loads(package)


def test_key_set_on_conf_is_used():
    package = SignedPackage.dumps(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conf, "SECRET_KEY", "OOPS")
        with pytest.raises(BadSignature):
            SignedPackage.loads(package)
    assert SignedPackage.loads(package) == 1


def test_unpicklable_object_raises_in_the_caller():
    with pytest.raises((AttributeError, pickle.PicklingError)):
        SignedPackage.dumps(lambda: None)
