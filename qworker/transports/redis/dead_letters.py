"""Dead letters, revocations, and sweeping out what is too old of both.

Comes from:  the command line, ``app.control``, the Listener.
Goes to:     a hash for each dead letter, the sorted sets ``qworker.dead`` and ``qworker.dead.<queue>`` (by
             time of death), and ``qworker.revoked`` (by the number of the revocation).
Thread:      any.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from qworker.clock import Clock
from qworker.naming import task_id
from qworker.transports.lease import Dead, Envelope, Revocation
from qworker.transports.redis.connection import Link, Links, Script, checked, pack
from qworker.transports.redis.envelope import from_payload, route, to_payload
from qworker.transports.redis.layout import Layout
from qworker.transports.redis.result_rows import STORE_ROW, TASK_PREFIX
from qworker.transports.redis.scripts import KEEP_LETTER, PRELUDE, PUT_BACK

logger = logging.getLogger(__name__)

PORTION = 500

FORGET = r"""
local function forget(tag)
  local key = P .. 'qworker.letter.' .. tag
  local letter = redis.call('HMGET', key, 'queue', 'step', 'payload')
  redis.call('ZREM', P .. 'qworker.dead', tag)
  if not letter[1] then return false end
  redis.call('ZREM', P .. 'qworker.dead.' .. letter[1], tag)
  redis.call('DEL', key)
  return letter
end
"""
RETRY = Script(
    PRELUDE
    + STORE_ROW
    + PUT_BACK
    + FORGET
    + r"""
-- ARGV: tag, key of its task's result, tag, key… Who waits for a retried task is to see its new end, not the
-- old one.
local count = 0
for i = 4, #ARGV, 2 do
  local letter = forget(ARGV[i])
  if letter then
    local _, _, _, _, rest = stated(letter[3])
    redis.call('LPUSH', list_of(letter[1], letter[2]), joined('0', 'true', '0', 'null', rest))
    if ARGV[i + 1] ~= '' and status_of(ARGV[i + 1]) == 'FAILURE' then
      redis.call('DEL', ARGV[i + 1], ARGV[i + 1] .. '.status')
    end
    ring(letter[1])
    count = count + 1
  end
end
return count
"""
)
DISCARD = Script(
    PRELUDE
    + FORGET
    + r"""
local count = 0
for i = 4, #ARGV do if forget(ARGV[i]) then count = count + 1 end end
return count
"""
)
SHOW = Script(
    PRELUDE
    + r"""
-- ARGV: sorted set, how many. Returns tag, queue, reason, died_at, payload of each, the newest first.
local out = {}
for _, tag in ipairs(redis.call('ZREVRANGE', ARGV[4], 0, tonumber(ARGV[5]) - 1)) do
  local letter = redis.call('HMGET', P .. 'qworker.letter.' .. tag, 'queue', 'reason', 'died_at', 'payload')
  if letter[1] then out[#out + 1] = {tag, letter[1], letter[2], letter[3], letter[4]} end
end
return out
"""
)
TAKE_IN = Script(
    PRELUDE
    + PUT_BACK
    + KEEP_LETTER
    + r"""
-- ARGV: tag, queue, step, reason, died_at, deliveries, payload, tag, queue… of letters from elsewhere.
for i = 4, #ARGV, 7 do
  local _, redelivered, parked, due, rest = stated(ARGV[i + 6])
  local payload = joined(ARGV[i + 5], redelivered, parked, due, rest)
  redis.call('SADD', P .. 'qworker.queues', ARGV[i + 1])
  keep_letter(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], payload)
end
return 1
"""
)
SWEEP = Script(
    PRELUDE
    + FORGET
    + r"""
-- ARGV: epoch second before which dead letters are too old, how many a queue keeps, how many go at a time.
local count, portion = 0, tonumber(ARGV[6])
local function go(tags) for _, tag in ipairs(tags) do forget(tag); count = count + 1 end end
go(redis.call('ZRANGEBYSCORE', P .. 'qworker.dead', '-inf', '(' .. ARGV[4], 'LIMIT', 0, portion))
if redis.call('ZCARD', P .. 'qworker.dead') > tonumber(ARGV[5]) then
  for _, queue in ipairs(redis.call('SMEMBERS', P .. 'qworker.queues')) do
    local key = P .. 'qworker.dead.' .. queue
    local excess = redis.call('ZCARD', key) - tonumber(ARGV[5])
    if excess > 0 and count < portion then go(redis.call('ZRANGE', key, 0, math.min(excess, portion) - 1)) end
  end
end
for _, member in ipairs(redis.call('ZRANGE', P .. 'qworker.revoked', 0, portion - 1)) do
  if (tonumber(string.match(member, '^[%d.]+') or '') or 0) < WALL then
    redis.call('ZREM', P .. 'qworker.revoked', member)
    count = count + 1
  end
end
return count
"""
)
REVOKE = Script(
    PRELUDE
    + r"""
-- ARGV: when it expires, the order as JSON… The channel of revocations is that of the queue without a name.
for i = 5, #ARGV do
  local number = number_after(P .. 'qworker.revoked.number')
  redis.call('ZADD', P .. 'qworker.revoked', number, ARGV[4] .. ' ' .. number .. ' ' .. ARGV[i])
end
redis.call('PUBLISH', BELL, '1')
return 1
"""
)


class Letters:
    """The part of RedisBroker that keeps dead letters and revocations; the store supplies clock, layout and
    links."""

    _clock: Clock
    _layout: Layout
    _links: Links
    _revoke_expires: float

    def _run(self, script: Script, *arguments: Any) -> Any:
        with self._links.lent() as link:
            return self._layout.run(link, script, self._clock.now(), *arguments)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        orders = [json.dumps([task_id, terminate, signal]) for task_id in ids]
        if orders:
            self._run(REVOKE, repr(self._clock.now() + self._revoke_expires), *orders)

    def _revoked_since(self, link: Link, cursor: int) -> tuple[int, list[Revocation]]:
        command = pack(("ZRANGEBYSCORE", self._layout.key("revoked"), f"({cursor}", "+inf"))
        found = []
        for member in checked(link, link.ask(command)[0]):
            try:
                expires, number, order = member.decode().split(" ", 2)
                at, until, read = int(number), float(expires), Revocation(*json.loads(order))
            except (ValueError, TypeError, RecursionError):
                logger.warning("an order to revoke cannot be read, and is passed over: %.100r", member)
                continue
            cursor = at
            if until > self._clock.now() and all(map(isinstance, read, (str, bool, str))):
                found.append(read)
        return cursor, found

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        rows = self._run(SHOW, self._layout.key("dead" if queue is None else f"dead.{queue}"), limit)
        found = []
        for tag, name, reason, died_at, payload in rows if limit > 0 else ():
            message = from_payload(payload, self._layout.scale)
            found.append(
                Dead(
                    int(tag),
                    name.decode(),
                    reason.decode("utf-8", "replace"),
                    float(died_at),
                    message.deliveries,
                    message.headers,
                    message.properties,
                    message.body,
                )
            )
        return found

    def push_dead(self, letters: Sequence[Dead]) -> None:
        for start in range(0, len(letters), PORTION):
            arguments: list[Any] = []
            for letter in letters[start : start + PORTION]:
                _, queue, reason, died_at, deliveries, headers, properties, body = letter
                step, tail = route(queue, 0, self._layout.scale)
                payload = to_payload(Envelope(queue, headers, properties, body), b"null", tail, task_id())
                tag = from_payload(payload, self._layout.scale).tag
                arguments += (tag, queue, step, reason, repr(float(died_at)), deliveries, payload)
            self._run(TAKE_IN, *arguments)

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        count = 0
        for portion in self._portions(tags):
            arguments: list[str | int] = []
            for tag, payload in zip(portion, self._payloads(portion), strict=True):
                arguments += (tag, self._result_key(payload))
            count += self._run(RETRY, *arguments)
        return count

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        return sum(self._run(DISCARD, *portion) for portion in self._portions(tags))

    def _portions(self, tags: Sequence[int] | None) -> list[Sequence[int]]:
        if tags is None:
            with self._links.lent() as link:
                command = pack(("ZRANGE", self._layout.key("dead"), 0, -1))
                tags = [int(tag) for tag in checked(link, link.ask(command)[0])]
        return [tags[start : start + PORTION] for start in range(0, len(tags), PORTION)]

    def _payloads(self, tags: Sequence[int]) -> list[bytes | None]:
        commands = [pack(("HGET", self._layout.key(f"letter.{tag}"), "payload")) for tag in tags]
        with self._links.lent() as link:
            return [checked(link, reply) for reply in link.ask(b"".join(commands), len(commands))]

    def _result_key(self, payload: bytes | None) -> str:
        """Where the result of the message's task is kept, if it is here; '' for what has no id."""
        if payload is None:
            return ""
        try:
            headers = json.loads(from_payload(payload, self._layout.scale).headers)
        except ValueError:
            return ""
        task_id = headers.get("id") if isinstance(headers, dict) else None
        return f"{self._layout.results_prefix}{TASK_PREFIX}{task_id}" if isinstance(task_id, str) else ""
