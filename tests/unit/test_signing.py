"""Signed messages: the effects of changes to the message, the key or the time."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.clock import isoformat
from qworker.errors import ConfigurationError, SecurityError
from qworker.message.protocol import (
    TaskMessage,
    decode_body,
    encode,
    encode_parts,
    parse_headers,
    parse_properties,
    retry_headers,
)
from qworker.message.signing import SIGNED_HEADERS, Signer
from qworker.testing import FakeClock

OLD = "the old key, which is long enough"
NEW = "the new key, which is long enough"
ACCEPT = frozenset({"json"})
MESSAGE = TaskMessage("proj.add", "id-1", (1, 2), {"x": 3}, stamps={"team": "a"}, timelimit=(10, 5))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def signer(clock: FakeClock) -> Signer:
    return Signer([NEW], clock)


def parts(message: TaskMessage, signer: Signer) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    encoded = encode(message, signer)
    return parse_headers(encoded.headers), parse_properties(encoded.properties), encoded.body


def test_signed_message_is_accepted(signer: Signer) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    assert decode_body(body, headers, properties, ACCEPT, signer).args == (1, 2)


def test_unsigned_message_is_rejected(signer: Signer) -> None:
    encoded = encode(MESSAGE)
    with pytest.raises(SecurityError, match="not signed"):
        decode_body(encoded.body, parse_headers(encoded.headers), parse_properties(None), ACCEPT, signer)


@pytest.mark.parametrize("position", range(0, 90, 7))
def test_flipped_bit_in_the_body_is_detected(signer: Signer, position: int) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    position %= len(body)
    changed = body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :]
    with pytest.raises(SecurityError, match="does not match"):
        decode_body(changed, headers, properties, ACCEPT, signer)


@pytest.mark.parametrize("name", SIGNED_HEADERS)
def test_changed_header_is_detected(signer: Signer, name: str) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    for value in ("other", None, 7):
        if headers.get(name) != value:
            with pytest.raises(SecurityError, match="does not match"):
                signer.verify({**headers, name: value}, body, properties)


@pytest.mark.parametrize("name", ["content_type", "content_encoding", "reply_to"])
def test_changed_property_is_detected(signer: Signer, name: str) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    with pytest.raises(SecurityError, match="does not match"):
        signer.verify(headers, body, {**properties, name: "application/x-python-serialize"})


@pytest.mark.parametrize("name", ["argsrepr", "shadow", "redelivered", "x-death", "traceparent"])
def test_unsigned_headers_may_change(signer: Signer, name: str) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    signer.verify({**headers, name: "other"}, body, properties)


def test_signatures_of_two_messages_cannot_be_swapped(signer: Signer) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    other, _, _ = parts(TaskMessage("proj.delete", "id-2", (1, 2), {"x": 3}), signer)
    with pytest.raises(SecurityError, match="does not match"):
        signer.verify({**headers, "signature": other["signature"]}, body, properties)
    with pytest.raises(SecurityError, match="does not match"):
        signer.verify({**other, "signature": headers["signature"]}, body, properties)


def test_keys_rotate(clock: FakeClock) -> None:
    old, both, new = Signer([OLD], clock), Signer([NEW, OLD], clock), Signer([NEW], clock)
    headers, properties, body = parts(MESSAGE, old)
    both.verify(headers, body, properties)
    with pytest.raises(SecurityError, match="not in security_key"):
        new.verify(headers, body, properties)
    headers, properties, body = parts(MESSAGE, both)
    new.verify(headers, body, properties)


def test_wrong_secret_with_the_right_key_id_is_rejected(signer: Signer, clock: FakeClock) -> None:
    headers, properties, body = parts(MESSAGE, Signer([OLD], clock))
    version, _, *rest = headers["signature"].split(":")
    ours = signer.sign(headers, body, properties).split(":")[1]
    with pytest.raises(SecurityError, match="does not match"):
        signer.verify({**headers, "signature": ":".join((version, ours, *rest))}, body, properties)


@pytest.mark.parametrize(
    "signature",
    [
        None,
        7,
        "",
        "v1",
        "v2:a:1:b",
        "v1:k:x:d",
        "v1:k:²:d",
        "v1:k:1:d:e",
        "v1:k:" + "9" * 99 + ":d",
        "é:\ud800:1:x",
    ],
)
def test_malformed_signatures_are_rejected(signer: Signer, signature: object) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    with pytest.raises(SecurityError):
        signer.verify({**headers, "signature": signature}, body, properties)


def test_malformed_digests_are_rejected(signer: Signer) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    start = headers["signature"].rpartition(":")[0]
    for digest in ("é", "\ud800", ""):
        with pytest.raises(SecurityError, match="does not match"):
            signer.verify({**headers, "signature": f"{start}:{digest}"}, body, properties)


def test_max_age_counts_from_the_eta(clock: FakeClock) -> None:
    signer = Signer([NEW], clock, max_age=60)
    now = parts(MESSAGE, signer)
    later = parts(TaskMessage("proj.add", "id-1", eta=isoformat(clock.now() + 3600)), signer)
    clock.advance(59)
    signer.verify(now[0], now[2], now[1])
    clock.advance(3)
    with pytest.raises(SecurityError, match="security_max_age is 60 s"):
        signer.verify(now[0], now[2], now[1])
    signer.verify(later[0], later[2], later[1])


def test_signing_time_is_signed(signer: Signer) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    version, key, signed_at, *rest = headers["signature"].split(":")
    with pytest.raises(SecurityError, match="does not match"):
        signer.verify(
            {**headers, "signature": ":".join((version, key, str(int(signed_at) + 9), *rest))},
            body,
            properties,
        )


def test_signatures_are_unique(signer: Signer) -> None:
    assert len({parts(MESSAGE, signer)[0]["signature"] for _ in range(50)}) == 50


def test_custom_headers_are_signed_and_headers_can_be_added(signer: Signer) -> None:
    own = {"tenant": "a", "odd:,%é name": [1, None, {"x": 1.5}], "when": {"a": (1, 2)}, "x-trace": "t"}
    message = TaskMessage("proj.add", "id-1", headers=own)
    headers, properties, body = parts(message, signer)
    signer.verify(headers, body, properties)
    signer.verify({**headers, "traceparent": "added on the way", "x-trace": "another"}, body, properties)
    for name in ("tenant", "odd:,%é name", "when"):
        with pytest.raises(SecurityError, match="does not match"):
            signer.verify({**headers, name: "other"}, body, properties)
        with pytest.raises(SecurityError, match="does not match"):
            signer.verify({key: value for key, value in headers.items() if key != name}, body, properties)


@pytest.mark.parametrize(
    "name", ["qworker_joins", "qworker_failed", "qworker_members", "qworker_publication"]
)
def test_internal_headers_cannot_be_added_later(signer: Signer, name: str) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    with pytest.raises(SecurityError, match=f"{name}' was added after"):
        signer.verify({**headers, name: None}, body, properties)
    headers, properties, body = parts(TaskMessage("proj.add", "id-1", headers={name: [1]}), signer)
    signer.verify(headers, body, properties)
    with pytest.raises(SecurityError, match="does not match"):
        signer.verify({**headers, name: [2]}, body, properties)


def test_sealed_result_is_bound_to_its_subject(clock: FakeClock) -> None:
    old, both, new = Signer([OLD], clock), Signer([NEW, OLD], clock), Signer([NEW], clock)
    for data in (b"", b"5", b"\0qworker-signature\0", bytes(range(256))):
        sealed = old.seal(data, "result", "id-1")
        assert old.unseal(sealed, "result", "id-1") == both.unseal(sealed, "result", "id-1") == data
        for wrong in (data, sealed[:-1], b"x" + sealed, sealed + b"x", sealed.replace(b"0", b"1")):
            if wrong != sealed:
                with pytest.raises(SecurityError):
                    old.unseal(wrong, "result", "id-1")
        for subject in ((), ("result",), ("result", "id-2"), ("children", "id-1")):
            with pytest.raises(SecurityError, match="does not match"):
                old.unseal(sealed, *subject)
        with pytest.raises(SecurityError, match=r"is signed with key .* which is not in security_key"):
            new.unseal(sealed, "result", "id-1")


def test_order_signatures_and_seals_are_not_interchangeable(signer: Signer) -> None:
    order = signer.sign_order("revoke", "id-1", False, "SIGTERM")
    assert signer.is_order(order, "revoke", "id-1", False, "SIGTERM")
    for fields in (("revoke", "id-2", False, "SIGTERM"), ("revoke", "id-1", True, "SIGTERM"), ()):
        assert not signer.is_order(order, *fields)
    for wrong in ("", ":", order[:-1], "é:é", "SIGTERM"):
        assert not signer.is_order(wrong, "revoke", "id-1", False, "SIGTERM")
    sealed = signer.seal(b"", "revoke", "id-1", False, "SIGTERM")  # type: ignore[arg-type]
    assert not signer.is_order(sealed.rpartition(b"\0")[2].decode(), "revoke", "id-1", False, "SIGTERM")


def test_retry_is_signed_again(signer: Signer) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    again = retry_headers(headers, 1_800_000_000.0, 1, headers["id"])
    assert "signature" not in again
    encoded = encode_parts(again, properties, body, signer)
    assert decode_body(
        encoded.body, parse_headers(encoded.headers), parse_properties(encoded.properties), ACCEPT, signer
    )


@pytest.mark.parametrize("keys", [[], "", [""], ["short"], ["long enough for a key", "short"]])
def test_missing_or_short_keys_are_rejected(keys: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="16 bytes") as caught:
        Signer(keys)
    assert caught.value.setting == "security_key"


def test_single_key_can_be_a_string(signer: Signer, clock: FakeClock) -> None:
    headers, properties, body = parts(MESSAGE, signer)
    Signer(NEW, clock).verify(headers, body, properties)  # type: ignore[arg-type]
