"""Code that reads external input takes time proportional to its size, even on hostile input.

Every regular expression of the package is found in its source: a new one must be in REGEXES, to be tried with
hostile repetitions, or in BOUNDED, with the reason why its input is short. SCANNERS are the functions that
read data of untrusted senders. CPU time is measured, and only its growth is judged: twice the size may take
at most 2.5 times the time.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import qworker
from qworker import clock
from qworker.cli.output import visible
from qworker.components.status import metrics
from qworker.conf.secrets import mask_urls
from qworker.errors import InvalidTaskMessage, QWorkerError
from qworker.message import kombu_json
from qworker.message.exceptions import exception_from_dict, exception_to_dict
from qworker.message.kombu_envelope import from_kombu
from qworker.message.protocol import decode_body, parse_headers, parse_properties, receive
from qworker.safe_repr import printable, repr_args, repr_kwargs, safe_repr
from qworker.tasks import execution
from qworker.transports.amqp.codec import Delivery, read_content
from qworker.transports.amqp.table import read_table
from qworker.transports.connect_errors import explained, while_connecting
from qworker.transports.held.messages import read as read_plain

# A regular expression takes up to 8 s of CPU time, and longer on a busy machine.
pytestmark = [pytest.mark.timeout(900), pytest.mark.one_python]

MOST_GROWTH = 2.5
MEASURABLE = 0.02
"""CPU seconds from which a doubling can be distinguished from noise."""
LARGEST = 16 * 1024
"""At this size, quadratic time is measurable even if a step takes a tenth of a nanosecond."""
ROUNDS = 12

REGEXES: dict[str, Callable[[], list[Any]]] = {
    "qworker.transports.sql.embedded.database:_STRICTLY": lambda: _named(
        "qworker.transports.sql.embedded.database:_STRICTLY"
    ),
    "qworker.transports.sql.embedded.path:_ESCAPED": lambda: _named(
        "qworker.transports.sql.embedded.path:_ESCAPED"
    ),
    "qworker.transports.redis.envelope:_HEAD": lambda: _named("qworker.transports.redis.envelope:_HEAD"),
    "qworker.transports.connect_errors:_HANGING_UP": lambda: _named(
        "qworker.transports.connect_errors:_HANGING_UP"
    ),
    "qworker.transports.connect_errors:_WAITING": lambda: _named(
        "qworker.transports.connect_errors:_WAITING"
    ),
    "qworker.spooler.ini:_REFERENCE": lambda: _named("qworker.spooler.ini:_REFERENCE"),
    "qworker.spooler.ini:_LOGIC": lambda: _named("qworker.spooler.ini:_LOGIC"),
    "qworker.spooler.uwsgi.enqueueing:_DECIMAL": lambda: _named("qworker.spooler.uwsgi.enqueueing:_DECIMAL"),
    "qworker.transports.connect_errors:_PATTERNS": lambda: [
        pattern for pattern, _ in importlib.import_module("qworker.transports.connect_errors")._PATTERNS
    ],
    "qworker.transports.redis.connection:_CODE": lambda: _named("qworker.transports.redis.connection:_CODE"),
    "qworker.cli.process:_CODE": lambda: _named("qworker.cli.process:_CODE"),
    "qworker.conf.secrets:_SECRET_NAME": lambda: _named("qworker.conf.secrets:_SECRET_NAME"),
    "qworker.conf.secrets:_NOT_SECRET": lambda: _named("qworker.conf.secrets:_NOT_SECRET"),
    "qworker.conf.secrets:_USER": lambda: _named("qworker.conf.secrets:_USER"),
    "qworker.conf.secrets:_END": lambda: _named("qworker.conf.secrets:_END"),
    "qworker.conf.secrets:_NAME": lambda: _named("qworker.conf.secrets:_NAME"),
    "qworker.conf.secrets:_VALUE": lambda: _named("qworker.conf.secrets:_VALUE"),
    "qworker.conf.secrets:_SECRET_PARAMETER": lambda: _named("qworker.conf.secrets:_SECRET_PARAMETER"),
    "qworker.conf.kinds:_SIZE": lambda: _matched("qworker.conf.kinds:_SIZE"),
    "qworker.conf.kinds:_RATE": lambda: _matched("qworker.conf.kinds:_RATE"),
    "qworker.conf.kinds:_URL": lambda: _matched("qworker.conf.kinds:_URL"),
    "qworker.process.owner_files:_NAME": lambda: [
        pattern.fullmatch for pattern in _named("qworker.process.owner_files:_NAME")
    ],
    "qworker.conf.kinds:_NO_KEY": lambda: _named("qworker.conf.kinds:_NO_KEY"),
    "qworker.conf.kinds:_integer": lambda: [importlib.import_module("qworker.conf.kinds")._integer],
}
"""Regular expressions by module and by what they are assigned to, or the function they are in."""

BOUNDED: dict[str, str] = {
    "qworker.transports.sql.postgresql:BY_CONSUMER": "it takes at most 18 digits",
    "qworker.django.settings.keys:_NODE": "it looks at the project's own settings",
    "qworker.django.settings.keys:_HOST": "it looks at the project's own settings",
    "qworker.transports.disque.url:_NODE": "it looks at a URL of the app's own settings",
    "qworker.conf.secrets:_TOKEN": "each part begins with a scheme, and ends where the next could begin",
    "qworker.django.models.recurrence:OPEN_STEP": "crontabs have at most 100 characters",
    "qworker.transports.as_kombu.exchanges:_can_match": "it only compiles what is bound",
    "qworker.transports.as_kombu.exchanges:matching": "as in kombu, patterns are those of bindings that "
    "workers of this broker have declared",
    "qworker.transports.as_kombu.transport:_user_of": "it splits by single characters",
    "qworker.tasks.codecs:_DURATION": "_read_duration() looks at 64 characters at most",
    "qworker.django.transports.databases:_check_types": "it looks at the project's own settings",
    "qworker.django.transports.databases:_server": "it looks at the project's own settings",
    "qworker.transports.connect_errors:check_libpq": "it looks at a URL of the app's own settings",
    "qworker.beat.catalog:_MARK": "it looks at the last characters alone, as many as a mark has",
    "qworker.django.transports.databases:_postgresql": "it looks at the project's own settings",
    "qworker.beat.fields:_PART": "read() looks at 1,000 characters at most",
    "qworker.beat.kinds:_ADDRESS": "it looks at what a schedule of one's own code says of itself",
    "qworker.cli.discovery:_NAMED_SETTINGS": "the file is one that the user runs, of 1 MB at most",
    "qworker.clock:_PART": "_parse_duration() looks at 64 characters at most",
    "qworker.publishing.routing:_compile": "the patterns are the user's own settings, and names of tasks "
    "have at most 255 characters",
    "qworker.spooler.files.packet:_digits": "names of files have at most 255 bytes",
    "qworker.spooler.files.locks:_mount": "the system says what is mounted",
    "qworker.spooler.network.server:_NUMBER": "a value of a packet has at most 65,531 bytes, of which it "
    "looks at 31",
    "qworker.publishing.routing:_topic": "bindings and routing keys are the caller's own settings and "
    "arguments",
}

UNITS = ("a", "A", "1", " ", ".", "1.", "://", "://a:", "a:b@", "?", "?key", ";", "&", "=", "key=", "key",
"%", "%%",
         "\\", "\\000", '"', "'", "@", "+", "-", "_", "<", "\n", "1 ", "/", "alert ", "pass",
         "e")  # fmt: skip
BEFORE = ("", "1", "a://", "?", '{"qworker": {"deliveries": ')
AFTER = ("", "!", "\n!")


def _named(where: str) -> list[Any]:
    module, _, name = where.partition(":")
    return [getattr(importlib.import_module(module), name)]


def _matched(where: str) -> list[Any]:
    """Return the match() of an expression that is used with it only."""
    return [pattern.match for pattern in _named(where)]


def _used(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield (name it is assigned to, or of the function it is in; call) for each use of the module re."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.Call]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not name:
            name = node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not name:
            name = node.target.id
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "re" and node.func.attr not in ("escape", "purge"):
                yield name, node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, name)

    yield from walk(node, "")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield (name, syntax tree) of each module in which the word re occurs."""
    root = Path(qworker.__file__).parent
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        if re.search(r"\bre\b", text):
            parts = path.relative_to(root.parent).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), ast.parse(text)


def test_every_regular_expression_is_tested_or_exempt() -> None:
    found = set()
    for module, tree in _modules():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "re"), (
                f"{module}: write import re"
            )
            renamed = isinstance(node, ast.Import) and any(a.name == "re" and a.asname for a in node.names)
            assert not renamed, f"{module}: import re by its own name, so that this test finds its uses"
        found |= {f"{module}:{name}" for name, _ in _used(tree)}
    assert found == {*REGEXES, *BOUNDED}, "see REGEXES and BOUNDED in this file"


# -- growth of time --


def _seconds(function: Callable[[Any], Any], given: Any) -> float:
    start = time.process_time()
    try:
        function(given)
    except (QWorkerError, ValueError):
        pass
    return time.process_time() - start


def check_growth(
    function: Callable[[Any], Any],
    make: Callable[[int], Any],
    largest: int = LARGEST,
    measurable: float = MEASURABLE,
    unlimited: bool = False,
) -> None:
    """make(n): the worst input of size n. Inputs that take almost no time at *largest* pass. unlimited:
    function has no limit beyond which inputs take less time, so that sizes between need not be tried."""
    gc.disable()
    try:
        if unlimited and all(_seconds(function, make(size)) < measurable for size in (1024, largest)):
            return
        size = 1024
        while (first := _seconds(function, make(size))) < measurable:
            if size >= largest:
                return
            size *= 2
        # The minimum of several runs approaches the undisturbed time. Two doublings are measured, since
        # one of them may be where a larger size needs other pages of memory.
        took = [first, float("inf"), float("inf")]
        growth = [0.0, 0.0]
        for _ in range(ROUNDS):
            took[0] = min(took[0], _seconds(function, make(size)))
            for place in (0, 1):
                took[place + 1] = min(took[place + 1], _seconds(function, make(size << place + 1)))
                growth[place] = took[place + 1] / took[place]
                if growth[place] <= MOST_GROWTH:
                    return
        pytest.fail(f"twice {size} takes {min(growth):.1f} times as long: {make(48)!r:.200}")
    finally:
        gc.enable()


def test_check_growth_distinguishes_linear_from_quadratic() -> None:
    check_growth(lambda text: [ord(c) for c in text], lambda n: "a" * n, 1024**2)

    def quadratic() -> None:
        for _ in range(5):  # it may pass if the measurement is disturbed
            check_growth(re.compile(r"a+b").search, lambda n: "a" * n, measurable=MEASURABLE / 20)

    with pytest.raises(pytest.fail.Exception, match="times as long"):
        quadratic()


def _function_of(pattern: Any) -> Callable[[str], Any]:
    if callable(pattern):
        return pattern  # type: ignore[no-any-return]
    if isinstance(pattern.pattern, bytes):
        return lambda text: pattern.match(text.encode())
    return lambda text: pattern.sub("", text)


@pytest.mark.parametrize("where", REGEXES)
def test_regular_expression_is_linear(where: str) -> None:
    for pattern in REGEXES[where]():
        function = _function_of(pattern)
        for before, unit, after in product(BEFORE, UNITS, AFTER):
            check_growth(
                function,
                lambda n, before=before, unit=unit, after=after: before + unit * (n // len(unit)) + after,
                largest=8 * 1024,
                unlimited=not callable(pattern),
            )


# -- readers of untrusted data --

HEADERS = '{"task":"t","id":"i","x":%s}'
ACCEPT = frozenset({"json"})


def _body(text: str, encoding: str = "utf-8") -> Any:
    properties = {"content_type": "application/json", "content_encoding": encoding}
    return decode_body(text.encode(encoding), parse_headers('{"task":"t","id":"i"}'), properties, ACCEPT)


def _frames(table: bytes) -> Delivery:
    header = b"\0\x3c\0\0" + (0).to_bytes(8, "big") + b"\x20\0" + len(table).to_bytes(4, "big") + table
    return Delivery("c", "", "q", 1, False, header, b"")


def _overlapping(size: int) -> bytes:
    """A table of arrays whose lengths reach into the next ones."""
    return b"\1a" + (b"A\0\0\0\x1eA\0\0\0\x05" * 30)[: max(size, 4)]


class _PlainMessage:
    """A message of another producer, as kombu returns it."""

    content_type = content_encoding = delivery_tag = None
    delivery_info: dict[str, Any] = {}

    def __init__(self, headers: Any, properties: Any, body: Any) -> None:
        self.headers, self.properties, self.body = headers, properties, body


def _traceback(text: str) -> str:
    return execution._format(ValueError(text))


JSON_TEXTS: dict[str, Callable[[int], str]] = {
    "an unclosed string of escaped quotes": lambda n: "[" * 300 + '"' + '\\"' * (n // 2),
    "quotes that are not escaped": lambda n: "[" * 300 + '\\\\"' * (n // 3),
    "backslashes": lambda n: "[" * 300 + "\\" * n,
    "quotes": lambda n: "[" * 300 + '"' * n,
    "open brackets": lambda n: "[" * n,
    "closed brackets": lambda n: "[" * 300 + "]" * n,
    "brackets in each other": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "stairs of brackets": lambda n: "[[]" * (n // 4) + "]" * (n // 4),
    "stairs of empty objects": lambda n: '{"a":{},"a":' * (n // 13) + "1" + "}" * (n // 13),
    "flat": lambda n: "[" + "[]," * (n // 3) + "1]",
    "deep but not too deep": lambda n: "[" + ("[" * 150 + "]" * 150 + ",") * (n // 301) + "1]",
    "digits": lambda n: "1" * n,
    "digits in a list": lambda n: "[" + "1" * n + "]" + "[]" * 300,
    "a fraction": lambda n: "0." + "1" * n,
    "tagged values": lambda n: "[" + '{"__type__":"bytes","__value__":"!"},' * (n // 37) + "1]",
    "a tagged time": lambda n: '{"__type__":"datetime","__value__":"' + "1" * n + '"}',
    "a tagged number": lambda n: '{"__type__":"decimal","__value__":"' + "1" * n + '"}',
    "spaces": lambda n: "[" + " " * n + "1",
    "surrogates": lambda n: '["' + "\\ud800" * (n // 6) + '"]',
    "keys": lambda n: "{" + ",".join(f'"{i}":1' for i in range(n // 8)) + "}",
    "one key": lambda n: "{" + '"a":1,' * (n // 6) + '"a":1}',
}
PLAIN_TEXTS: dict[str, Callable[[int], str]] = {
    "letters": lambda n: "a" * n,
    "schemes": lambda n: "a://" * (n // 4),
    "users": lambda n: "://a:" * (n // 5),
    "passwords": lambda n: "a://u:p@h " * (n // 10),
    "one long password": lambda n: "a://u:" + "@" * n,
    "parameters": lambda n: "a://" + "?key" * (n // 4),
    "parameters with values": lambda n: "a://?" + "key=a;" * (n // 6),
    "control characters": lambda n: "\x1b" * n,
    "lines": lambda n: "\n" * n,
    "surrogates": lambda n: "\ud800" * n,
    "spaces": lambda n: "1" + " " * n + "x",
    "words": lambda n: "alert certificate " * (n // 18),
    "quotes": lambda n: "'\"" * (n // 2),
    "zeros": lambda n: "0" * n,
}
ENVELOPES: dict[str, Callable[[int], str]] = {
    "digits of deliveries": lambda n: '{"qworker": {"deliveries": ' + "1" * n,
    "digits of due": lambda n: (
        '{"qworker": {"deliveries": 1, "redelivered": false, "parked": 0, "due": ' + "1" * n
    ),
    "points of due": lambda n: (
        '{"qworker": {"deliveries": 1, "redelivered": false, "parked": 0, "due": ' + "." * n
    ),
    "an envelope in envelopes": lambda n: '{"qworker": ' * (n // 12),
}


def _scanners() -> Iterator[tuple[str, Callable[[Any], Any], Callable[[int], Any]]]:
    json_readers: dict[str, Callable[[str], Any]] = {
        "too_deep": lambda text: kombu_json.too_deep(text.encode("utf-8", "replace")),
        "parse_headers": lambda text: parse_headers(HEADERS % text),
        "parse_properties": lambda text: parse_properties('{"x":%s}' % text),  # noqa: UP031
        "decode_body": _body,
        "decode_body in utf-16": lambda text: _body(text, "utf-16"),
        "receive of protocol 1": lambda text: receive("{}", None, text.encode(), ACCEPT),
        "a name": lambda text: parse_headers(json.dumps({"task": text, "id": text})),
        "a time": lambda text: parse_headers(json.dumps({"task": "t", "id": "i", "eta": text})),
        "a representation": lambda text: parse_headers(
            json.dumps({"task": "t", "id": "i", "argsrepr": text})
        ),
    }
    for (reader, function), (words, make) in product(json_readers.items(), JSON_TEXTS.items()):
        yield f"{reader}: {words}", function, make
    text_readers: dict[str, Callable[[str], Any]] = {
        "mask_urls": mask_urls,
        "explained": lambda text: explained(
            text, importlib.import_module("qworker.transports.connect_errors").REDIS
        ),
        "while_connecting": lambda text: while_connecting(text, True),
        "safe_repr": safe_repr,
        "repr_args": lambda text: repr_args((text, [text])),
        "repr_kwargs": lambda text: repr_kwargs({"a": text, "b": {text: text}}),
        "printable": printable,
        "visible": visible,
        "seconds": clock.seconds,
        "to_epoch": clock.to_epoch,
        "a traceback": _traceback,
        "exception_to_dict": lambda text: exception_to_dict(ValueError(text, [text])),
        "exception_from_dict": lambda text: exception_from_dict(
            {"exc_type": text, "exc_module": text, "exc_message": [text]}
        ),
        "a name in many parts": lambda text: exception_from_dict({"exc_type": text.replace("a", "a.")}),
        "a log line": lambda text: importlib.import_module("qworker.logs")._safe(text),
        "a size": lambda text: importlib.import_module("qworker.conf.kinds")._bytes(text),
        "a metric's label": lambda text: metrics._sample("m", {"queue": text}, 1.0),
    }
    for (reader, function), (words, make) in product(text_readers.items(), PLAIN_TEXTS.items()):
        yield f"{reader}: {words}", function, make
    for words, make in {**JSON_TEXTS, **PLAIN_TEXTS}.items():
        yield f"from_kombu: {words}", lambda text: from_kombu({"headers": {text: text}, "body": text}), make
        yield (
            f"from_kombu in base64: {words}",
            lambda text: from_kombu({"properties": {"body_encoding": "base64"}, "body": text}),
            make,
        )
        yield (
            f"a plain message: {words}",
            lambda text: read_plain(_PlainMessage({text: text}, {}, text)),
            make,
        )
    for name, table in {
        "values that overlap": _overlapping,
        "empty values": lambda n: b"\1aV" * (n // 3),
        "tables in tables": lambda n: b"\1aF\xff\xff\xff\xff" * (n // 7),
        "arrays of nothing": lambda n: b"\1aA" + n.to_bytes(4, "big") + b"V" * n,
        "new names": lambda n: b"".join(b"\3%3dV" % (i % 1000) for i in range(n // 5)),
    }.items():  # fmt: skip
        yield f"an AMQP header: {name}", lambda table: read_content(_frames(table)), table


SCANNERS = list(_scanners())


@pytest.mark.parametrize(
    ("function", "make"), [case[1:] for case in SCANNERS], ids=[case[0] for case in SCANNERS]
)
def test_reader_is_linear(function: Callable[[Any], Any], make: Callable[[int], Any]) -> None:
    check_growth(function, make)


@pytest.mark.parametrize("words", {**ENVELOPES, **JSON_TEXTS})
def test_redis_envelope_is_read_in_linear_time(words: str) -> None:
    pytest.importorskip("hiredis", reason='pip install "qworker-queue[redis]"')
    envelope = importlib.import_module("qworker.transports.redis.envelope")
    make = {**ENVELOPES, **JSON_TEXTS}[words]
    check_growth(lambda text: envelope.from_payload(text.encode("utf-8", "replace"), envelope.Scale()), make)


def test_table_with_a_value_beyond_its_end_is_refused() -> None:
    inner = b"A\0\0\0\1" + b"S\0\0\0\5hello"  # claims to be one byte long, and holds a text of ten
    table = b"\1a" + inner
    with pytest.raises(ValueError, match="beyond the end"):
        read_table(len(table).to_bytes(4, "big") + table, 0)


def test_unreadable_header_gives_a_message_without_a_task() -> None:
    content = read_content(_frames(b"\1aZ"))
    with pytest.raises(InvalidTaskMessage, match="missing"):
        parse_headers(content.text)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "utf-32"])
def test_depth_limit_applies_in_every_encoding(encoding: str) -> None:
    with pytest.raises(InvalidTaskMessage, match="deeper"):
        _body("[" * 300 + '"\\"' + '"' + "]" * 300, encoding)
