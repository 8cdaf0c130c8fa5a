"""humanhash: the same names as in django-q2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.django.humanhash import DEFAULT_WORDLIST, HumanHasher, humanize, uuid


@pytest.mark.parametrize(
    ("digest", "words", "name"),
    [
        # Made by django-q2 1.11.
        ("b9f1e6905b9f43019d09d837396de0a4", 4, "emma-massachusetts-lithium-bacon"),
        ("60ad8d0d871b6095808297", 4, "sodium-magnesium-nineteen-hydrogen"),
        ("0102030405060708090a", 4, "alaska-april-alaska-aspen"),
        ("ff" * 16, 3, "zulu-zulu-ack"),
        ("0102030405", 5, "alabama-alanine-alaska-alpha-angel"),
    ],
)
def test_humanize_matches_django_q2(digest, words, name):
    assert humanize(digest, words) == name
    assert humanize(hexdigest=digest, words=words, separator=" ") == name.replace("-", " ")


def test_uuid_returns_a_digest_and_its_name():
    name, digest = uuid()
    assert name == humanize(digest)
    assert len(digest) == 32
    assert int(digest, 16) >= 0
    assert uuid()[1] != digest
    assert uuid(words=2, separator="/")[0].count("/") == 1


def test_words_are_unique():
    assert len(set(DEFAULT_WORDLIST)) == 256


@pytest.mark.parametrize(("digest", "words"), [("0102", 4), ("zz", 1), ("", 1), ("0102", 0), ("0102", -1)])
def test_invalid_digests_are_rejected(digest, words):
    with pytest.raises(ValueError, match=r"cannot be compressed|fromhex"):
        humanize(digest, words)


def test_word_list_needs_256_words():
    with pytest.raises(ValueError, match="must have 256 words, but this one has 3"):
        HumanHasher(("a", "b", "c"))
    assert HumanHasher([str(number) for number in range(256)]).humanize("07ff", 2) == "7-255"


@given(st.binary(min_size=1, max_size=40), st.integers(1, 40))
def test_compress_uses_each_byte_once(data, target):
    if len(data) < target:
        return
    made = HumanHasher.compress(data, target)
    assert len(made) == target
    whole = rest = 0
    for byte in data:
        whole ^= byte
    for byte in made:
        rest ^= byte
    assert whole == rest
