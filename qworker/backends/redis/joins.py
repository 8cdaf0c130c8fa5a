"""Joins on Redis, in qworker's format and in Celery's.

Comes from:  ``backend.py``.
Goes to:     the keys described in ``transports/redis/join_rows.py``; the queues, if the broker is the same
             database.
Thread:      any; each use borrows a connection of the result store.

Every operation is one script. A join that no worker claims is deleted KEPT_SECONDS after its expiry.

A chord in Celery's format is counted as in Celery, so some members may run on Celery's workers. The worker
that records the last part finishes the chord. If it is qworker's, the chord is claimed here, and Celery's
``.c`` lock is held as long as the claim lasts. A chord that Celery finishes never appears here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from qworker.backends.base import Backend
from qworker.backends.joins import (
    DONE_SECONDS,
    DONE_SECONDS_FOR_EVER,
    MAX_PARTS,
    PUSH_SECONDS,
    Finished,
    Join,
    Joins,
)
from qworker.clock import Clock
from qworker.errors import DamagedResult
from qworker.process.crash_points import crash_point
from qworker.states import FAILURE
from qworker.transports.join_parts import check_join
from qworker.transports.lease import Envelope, Part, Sender
from qworker.transports.portions import portions
from qworker.transports.redis.connection import Link, Script
from qworker.transports.redis.join_rows import (
    JOIN_KEYS,
    RECORD_PARTS,
    JoinKeys,
    part_arguments,
    unpack_part,
)
from qworker.transports.redis.sender import PUBLISH, RedisSender

KEPT_SECONDS = 86400.0
"""How long an overdue join is kept for a worker to claim."""
PORTION = 10_000
"""Parts per script, so that the server can serve other clients in between."""

_PRELUDE = (
    JOIN_KEYS
    + """
local P = ARGV[1]
local INDEX = index_key(P)
local function wrong(key) return redis.error_reply(key .. ' does not contain a join: delete it') end
-- Whether the claim of a chord is ours, or may be taken up again; false when it is Celery's.
local function chord_is_ours(join, token, state)
  local _, _, s, _, c = chord_keys(P, join)
  local holder = ask('GET', c)
  if holder == token then return true end
  return not holder and (state == 'damaged' or redis.call('EXISTS', s) == 1)
end
"""
)
_CLAIMED = (
    _PRELUDE
    + """
local join, token = ARGV[2], ARGV[3]
local found = ask('HMGET', join_key(P, join), 'token', 'celery', 'expires')
local ours = found and found[1] == token and (not found[2] or chord_is_ours(join, token, found[2]))
local _, _, _, _, c = chord_keys(P, join)
"""
)

_OPEN = Script(
    _PRELUDE
    + """
for i = 2, #ARGV, 5 do
  local key = join_key(P, ARGV[i])
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= 'hash' then return wrong(key) end
end
local kind = redis.call('TYPE', INDEX).ok
if kind ~= 'none' and kind ~= 'zset' then return wrong(INDEX) end
for i = 2, #ARGV, 5 do
  local join, size, body, expires, kept = unpack(ARGV, i, i + 4)
  local key, opened = join_key(P, join), age(i)
  if redis.call('EXISTS', key, done_key(P, join)) == 0 then
    redis.call('HSET', key, 'size', size, 'body', body, 'expires', expires, 'opened', opened)
    redis.call('DEL', parts_key(P, join))
    if kept ~= '' then redis.call('PEXPIRE', key, kept) end
    local score = expires
    if size == '0' then score = opened elseif expires == '' then score = '+inf' end
    redis.call('ZADD', INDEX, score, join)
  end
end
return 1
"""
)

_GROW = Script(
    _PRELUDE
    + """
-- ARGV: prefix, join, id of the call, for how many seconds Celery's keys are kept.
local join, task, kept = ARGV[2], ARGV[3], tonumber(ARGV[4])
local key, added = join_key(P, join), added_key(P, join)
local known, size, have, more = ask('EXISTS', key), nil, nil, nil
local number = ask('HGET', added, task)
if number then return tonumber(number) end
if known == 1 then
  size, have = tonumber(ask('HGET', key, 'size') or ''), ask('HLEN', parts_key(P, join))
  if not size or not have or have >= size then return false end
  redis.call('HSET', added, task, size)
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', added, left) end
  redis.call('HINCRBY', key, 'size', 1)
  return size
end
local j, t, s = chord_keys(P, join)
size, more = tonumber(ask('GET', s) or ''), tonumber(ask('GET', t) or 0)
have = ask('ZCARD', j) or ask('LLEN', j)
if not size or not more or not have or have >= size + more then return false end
redis.call('HSET', added, task, size + more)
if kept then redis.call('EXPIRE', added, chord_kept(s, kept)) end
redis.call('INCRBY', t, 1)
return size + more
"""
)

_ADD = Script(RECORD_PARTS + "record_parts(ARGV[1], 2, #ARGV)")

_CLAIM = Script(
    _PRELUDE
    + """
-- ARGV: prefix, now, limit, seconds, token, most parts, seconds as a whole number.
-- Returns id, body, whether it is overdue, whether it is Celery's, the parts and the run of each.
local now, token, most, out = tonumber(ARGV[2]), ARGV[5], tonumber(ARGV[6]), {}
local due = ask('ZRANGEBYSCORE', INDEX, '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
if not due then return wrong(INDEX) end
for _, join in ipairs(due) do
  if most <= 0 then break end
  local key, parts = join_key(P, join), parts_key(P, join)
  local found = ask('HMGET', key, 'size', 'body', 'expires', 'celery', 'token', 'run')
  local size, celery = found and tonumber(found[1]), found and found[4]
  if celery then
    local j, _, s, _, c = chord_keys(P, join)
    if chord_is_ours(join, found[5], celery) then
      local values = ask('ZRANGE', j, 0, -1, 'WITHSCORES') or ask('LRANGE', j, 0, -1) or {}
      local sorted = (redis.call('TYPE', j).ok == 'zset') and 'sorted' or 'listed'
      redis.call('SET', c, token, 'EX', ARGV[7])
      out[#out + 1] = {join, found[2] or '', celery == 'damaged' and 1 or 0, sorted, values, found[6] or ''}
      most = most - #values
    elseif redis.call('EXISTS', s) == 1 and ask('GET', c) ~= 'done' then
      -- Celery's, for now: look again when that claim ends.
      found = false
      redis.call('ZADD', INDEX, now + math.max(1, redis.call('PTTL', c) / 1000), join)
    else
      found = nil
    end
  elseif size then
    local have = ask('HLEN', parts)
    local late = have ~= size or (found[3] and found[3] ~= '' and tonumber(found[3]) <= now)
    local values = have and redis.call('HGETALL', parts) or {}
    out[#out + 1] = {join, found[2] or '', late and 1 or 0, '', values, ''}
    most = most - size
  else
    found = nil
  end
  if found then
    redis.call('HSET', key, 'token', token)
    redis.call('ZADD', INDEX, now + tonumber(ARGV[4]), join)
  elseif found == nil then
    redis.call('ZREM', INDEX, join)
    redis.call('UNLINK', key, parts, added_key(P, join))
  end
end
return out
"""
)

_EXTEND = Script(
    _CLAIMED
    + """
if not ours then return 0 end
if ARGV[4] ~= '' then
    if found[2] then redis.call('SET', c, token, 'EX', ARGV[5]) end
    redis.call('ZADD', INDEX, ARGV[4], join)
end
return 1
"""
)

_FINISH = Script(
    _CLAIMED
    + """
-- ARGV: prefix, join, token, now, for how many seconds at least and where joins never expire it is
-- remembered that this one was finished, and what is to be published.
if not ours then return 0 end
local kept = tonumber(ARGV[5])
if found[2] and ARGV[7] ~= '' then
  kept = math.max(kept, tonumber(ARGV[7]))
elseif found[2] or not found[3] or found[3] == '' then
  kept = tonumber(ARGV[6])
else
  kept = math.max(kept, tonumber(found[3]) - tonumber(ARGV[4]))
end
kept = math.ceil(kept)
local i = 8
"""
    + PUBLISH
    + """
redis.call('ZREM', INDEX, join)
redis.call('UNLINK', join_key(P, join), parts_key(P, join), added_key(P, join))
if found[2] then
  local j, t, s, d = chord_keys(P, join)
  redis.call('UNLINK', j, t, s, d)
  redis.call('SET', c, 'done', 'EX', kept)
else
  redis.call('SET', done_key(P, join), '1', 'EX', kept)
end
return 1
"""
)

_DROP = Script(
    _PRELUDE
    + """
for i = 2, #ARGV do
  local j, t, s, d, c = chord_keys(P, ARGV[i])
  local own, parts, added = join_key(P, ARGV[i]), parts_key(P, ARGV[i]), added_key(P, ARGV[i])
  redis.call('UNLINK', own, parts, added, runs_key(P, ARGV[i]), j, t, s, d, c)
  ask('ZREM', INDEX, ARGV[i])
end
return 1
"""
)

_HOLD = Script("""
local key = ARGV[1] .. 'qworker.body.' .. ARGV[2]
if redis.call('SET', key, ARGV[3], 'NX', 'EX', ARGV[4]) then return ARGV[3] end
return redis.call('GET', key)
""")

_SIZE = Script(
    _PRELUDE
    + """
-- ARGV: prefix, join, size, for how many seconds it is kept, run, for how many seconds that is remembered.
local j, t, s, d, c = chord_keys(P, ARGV[2])
local runs, new = runs_key(P, ARGV[2]), false
if ARGV[5] ~= '' then
  local now = redis.call('TIME')[1]
  ask('ZREMRANGEBYSCORE', runs, '-inf', now - ARGV[6])
  new = ask('ZADD', runs, 'NX', now, ARGV[5]) == 1
  redis.call('EXPIRE', runs, ARGV[6])
end
if ask('GET', c) == 'done' then
  if not new then return 0 end
  redis.call('DEL', j, t, d, c)
end
if ARGV[4] == '' then redis.call('SET', s, ARGV[3]) else redis.call('SET', s, ARGV[3], 'EX', ARGV[4]) end
return 1
"""
)


class RedisJoins(Joins):
    """The joins of *backend*. do: runs a function with a connection of the result store, so many times at
    most. place: the server and database. keys: names of keys."""

    def __init__(
        self, backend: Backend, do: Callable[[Callable[[Link], Any], int], Any], place: Any, keys: JoinKeys
    ) -> None:
        self._backend = backend
        self._do = do
        self._place = place
        self._keys = keys

    @property
    def _clock(self) -> Clock:
        return self._backend.clock

    def _call(self, script: Script, *arguments: Any, tries: int = 2) -> Any:
        keys = self._keys
        return self._do(lambda link: script.call(link, keys.declared, (keys.prefix, *arguments)), tries)

    def open(self, joins: Sequence[Join]) -> None:
        arguments: list[Any] = []
        now = self._clock.now()
        for join in joins:
            check_join(join.id, join.size)
            expires = "" if join.expires is None else repr(float(join.expires))
            kept = (
                ""
                if join.expires is None
                else math.ceil(1000 * (max(0.0, join.expires - now) + KEPT_SECONDS))
            )
            arguments += (join.id, join.size, join.body, expires, kept)
        if arguments:
            self._call(_OPEN, *arguments)

    def set_size(self, group: str, size: int, run: str = "", delay: float = 0.0) -> None:
        check_join(group, size)
        kept = self._keys.seconds and str(int(self._keys.seconds) + math.ceil(delay))
        remembered = max(int(kept), DONE_SECONDS) if kept else DONE_SECONDS_FOR_EVER
        self._call(_SIZE, group, size, kept, run, int(remembered))

    def grow(self, join: str, task_id: str) -> int | None:
        number = self._call(_GROW, join, task_id, self._keys.seconds)
        return None if number is None else int(number)

    def add(self, parts: Sequence[Part]) -> None:
        for some in portions(parts, PORTION):
            arguments = part_arguments(some, self._keys)
            if not arguments:
                continue
            crash_point("recording-parts")
            self._call(_ADD, *arguments)
            crash_point("parts-recorded")

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        token = os.urandom(8).hex()
        order = (repr(self._clock.now()), limit, repr(float(seconds)), token, MAX_PARTS)
        found = self._call(_CLAIM, *order, max(1, math.ceil(seconds)))
        claimed = []
        for name, *rest in found:
            try:
                claimed.append(self._finished(token, name.decode(), *rest))
            except UnicodeDecodeError:
                self._call(_DROP, name)  # no join has such an id
        return claimed

    def _finished(
        self,
        token: str,
        join: str,
        body: bytes,
        overdue: int,
        chord: bytes,
        values: list[bytes],
        run: bytes,
    ) -> Finished:
        if chord == b"sorted":
            scores = (float(score) for score in values[1::2])
            pairs = list(zip(scores, values[::2], strict=True))
            parts = [
                self._chord_part(join, int(score) if math.isfinite(score) else number, value, body)
                for number, (score, value) in enumerate(pairs)
            ]
        elif chord:
            parts = [self._chord_part(join, number, value, body) for number, value in enumerate(values)]
        else:
            pairs_of = zip(values[::2], values[1::2], strict=True)
            found = [unpack_part(join, number, value) for number, value in pairs_of]
            parts = sorted(part for part in found if part is not None)
            overdue = overdue or len(parts) < len(found)  # damaged parts count as missing
        return Finished(join, token, body, parts, bool(overdue), run.decode("utf-8", "replace"))

    def _chord_part(self, join: str, number: int, value: bytes, body: bytes) -> Part:
        try:
            task_id, status, _ = read_part(self._backend, join, value)
        except DamagedResult:
            return Part(join, number, "", FAILURE, value, body)  # the joiner reports the reason
        return Part(join, number, task_id, status, value, body)

    def chord_part(
        self, group: str, number: int, task_id: str, status: str, result: Any, body: bytes
    ) -> Part:
        value = part_value(self._backend, group, task_id, status, result)
        return Part(group, number, task_id, status, value, body)

    def read_chord_part(self, part: Part) -> Any:
        return read_part(self._backend, part.join, part.value)[2]

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        here = isinstance(sender, RedisSender) and sender.place == self._place
        commands: list[Any] = []
        if here and envelopes:
            assert isinstance(sender, RedisSender)
            commands = sender.commands(envelopes)
        elif not here:
            until = "" if join.attempt else repr(self._clock.now() + PUSH_SECONDS)
            if not self._call(_EXTEND, join.id, join.token, until, math.ceil(PUSH_SECONDS)):
                return False
            sender.push(envelopes)
            crash_point("body-sent")
        if here:
            crash_point("finishing-join")
        now = repr(self._clock.now())
        lasting = (DONE_SECONDS, DONE_SECONDS_FOR_EVER, self._keys.seconds)
        ours = self._call(_FINISH, join.id, join.token, now, *lasting, *commands, tries=1)
        if here:
            crash_point("join-finished")
        return bool(ours)

    def drop(self, joins: Collection[str]) -> None:
        for some in portions(joins, PORTION):
            self._call(_DROP, *some)

    def hold(self, body: str, publication: int, seconds: float) -> int:
        return int(self._call(_HOLD, body, publication, math.ceil(seconds)))

    def count(self) -> int:
        return int(self._call(_COUNT))


_COUNT = Script(JOIN_KEYS + "return ask('ZCARD', index_key(ARGV[1])) or 0")


def part_value(backend: Backend, join: str, task_id: str, status: str, result: Any) -> bytes:
    """Return the ``Part.value`` of *task_id*, a member of the chord of group *join*, in Celery's format.

    result: the value, or the exception in the format of ``message/exceptions.py``. Raises EncodeError when it
    cannot be serialised.
    """
    return backend.codec.encode_value([1, task_id, status, result], ("part", join))


def read_part(backend: Backend, join: str, value: bytes) -> tuple[str, str, Any]:
    """Undo part_value(): return the id of the task, its state, and its value or exception in stored form.
    Raises DamagedResult."""
    found = backend.codec.decode_value(value, ("part", join))
    if (
        not isinstance(found, list | tuple)
        or len(found) != 4
        or not isinstance(found[1], str)
        or not isinstance(found[2], str)
    ):
        raise backend.codec.damaged(None, f"as a member of the chord {join} is damaged: {value[:80]!r}")
    return found[1], found[2], found[3]
