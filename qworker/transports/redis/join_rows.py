"""The format of joins on Redis, ours and Celery's: the keys, and the Lua that records parts.

Comes from:  ``consumer.py``, in the script of the ack; ``backends/redis/joins.py``.
Goes to:     Lua scripts of both, which start with RECORD_PARTS.
Thread:      any; constants and pure functions.

Our join is the hash ``qworker.join.<id>`` (size, body, expires, opened; token once it was claimed), with its
parts in the hash ``qworker.part.<id>``: number → state, newline, id of the task. The sorted set
``qworker.joins`` has all joins by the time when they may be claimed: negative scores for those that are
finished, by age; else the epoch second at which they are overdue, or at which a claim ends.
``qworker.added.<id>`` has the numbers of calls that were added later, by id, also for Celery's chords. After
a join was finished ``qworker.done.<id>`` is kept for a while. ``qworker.body.<id of a task>`` names the
publication of a body that runs.

A chord in Celery's format has Celery's keys ``celery-taskset-meta-<group>`` with ``.j`` (return values of
members), ``.t`` (how many joined later), ``.s`` (size), ``.d`` (who is counted) and ``.c`` (who sends the
body, or "done"). Our hash is added when one of our parts completes it: its ``celery`` is 1, or ``damaged`` if
Celery's keys can never become complete; and its ``run`` distinguishes runs, because Celery's clients call a
frozen chord again under the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qworker.transports.join_parts import by_join, may_be_id
from qworker.transports.lease import Part
from qworker.transports.redis.result_rows import GROUP_PREFIX

CHORD_SECONDS = 60
"""How long a complete chord is ours before one of our workers claims it."""

JOIN_KEYS = f"""
local function index_key(prefix) return prefix .. 'qworker.joins' end
local function join_key(prefix, join) return prefix .. 'qworker.join.' .. join end
local function done_key(prefix, join) return prefix .. 'qworker.done.' .. join end
local function added_key(prefix, join) return prefix .. 'qworker.added.' .. join end
local function parts_key(prefix, join) return prefix .. 'qworker.part.' .. join end
local function runs_key(prefix, join) return prefix .. 'qworker.runs.' .. join end
local function chord_keys(prefix, join)
  local key = prefix .. '{GROUP_PREFIX}' .. join
  return key .. '.j', key .. '.t', key .. '.s', key .. '.d', key .. '.c', key
end
-- Returns for how many seconds to keep Celery's keys: 'kept', or longer if the size is kept longer.
local function chord_kept(size_key, kept) return math.max(tonumber(kept), redis.call('TTL', size_key)) end
-- Returns nil for an error, which would end the script halfway, without undoing its writes.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return nil end
  return reply
end
-- Returns the score of the n-th join opened by this script: it grows with time, and is below all times.
local function age(n)
  local now = redis.call('TIME')
  return string.format('%.0f', now[1] * 1000000 + now[2] - 9000000000000000 + n)
end
"""

RECORD_PARTS = (
    JOIN_KEYS
    + f"""
local CHORD_SECONDS = {CHORD_SECONDS}
"""
    + """
-- Adds parts to one of our joins: pairs of number and value, from ARGV[at] up to ARGV[to].
local function add_parts(prefix, join, at, to)
  local key, parts, new = join_key(prefix, join), parts_key(prefix, join), 0
  local found = ask('HMGET', key, 'size', 'token', 'opened')
  local size = found and found[3] and tonumber(found[1])
  if not size then return end
  for i = at, to, 2 do
    if tonumber(ARGV[i]) < size and ask('HSETNX', parts, ARGV[i], ARGV[i + 1]) == 1 then new = new + 1 end
  end
  if new == 0 then return end
  local have = redis.call('HLEN', parts)
  if have == new then
    local left = redis.call('PTTL', key)
    if left > 0 then redis.call('PEXPIRE', parts, left) end
  end
  if have >= size and not found[2] then ask('ZADD', index_key(prefix), found[3], join) end
end
-- Adds a part to a chord of Celery. ARGV from 'at': task, value, score, whether .j is a sorted set,
-- seconds to keep keys, a token, the body.
local function add_chord_part(prefix, join, at)
  local task, value, score, sorted, kept, token, body = unpack(ARGV, at, at + 6)
  local j, t, s, d, c, group = chord_keys(prefix, join)
  local holder = ask('GET', c)
  if holder == 'done' then return end
  local member = task .. ':' .. score
  local known = ask('SISMEMBER', d, member)
  local stored = known
  if known == 0 then
    if sorted == '1' then stored = ask('ZADD', j, score, value) else stored = ask('RPUSH', j, value) end
    if stored then redis.call('SADD', d, member) end
  end
  if kept ~= '' then
    local seconds = chord_kept(s, kept)
    for _, key in ipairs({j, t, s, d, group}) do redis.call('EXPIRE', key, seconds) end
  end
  local size, more = ask('GET', s), ask('GET', t)
  if size == false then return end
  local have = sorted == '1' and ask('ZCARD', j) or sorted ~= '1' and ask('LLEN', j)
  local whole = size and more ~= nil and tonumber(size) and tonumber(more or 0)
  whole = whole and whole + tonumber(size)
  local absurd = not whole or not (whole >= 0 and whole < 2147483648)
  local damaged = holder == nil or stored == nil or not have or absurd
  if not damaged and have < whole then return end
  if holder == nil then redis.call('DEL', c) end
  if not redis.call('SET', c, token, 'NX', 'EX', CHORD_SECONDS) then return end
  local key = join_key(prefix, join)
  local run = ask('HGET', key, 'run') or token
  redis.call('DEL', key)
  redis.call('HSET', key, 'celery', damaged and 'damaged' or '1', 'token', token, 'run', run, 'body', body)
  if kept ~= '' then redis.call('EXPIRE', key, math.max(tonumber(kept), 2 * CHORD_SECONDS)) end
  ask('ZADD', index_key(prefix), age(0), join)
end
-- Records the parts of part_arguments(), from ARGV[at] up to ARGV[to].
local function record_parts(prefix, at, to)
  while at <= to do
    local kind, join = ARGV[at], ARGV[at + 1]
    if kind == 'chord' then
      add_chord_part(prefix, join, at + 2)
      at = at + 9
    else
      local last = at + 2 + 2 * tonumber(ARGV[at + 2])
      add_parts(prefix, join, at + 3, last)
      at = last + 1
    end
  end
end
"""
)
"""Defines ``record_parts``, which ignores invalid parts."""


class JoinKeys(NamedTuple):
    """prefix: of all keys of the result store. expires: seconds for which Celery's keys are kept, None:
    forever. sorted: whether Celery keeps return values of members in order (``result_chord_ordered``)."""

    prefix: str = ""
    expires: float | None = None
    sorted: bool = True

    @property
    def seconds(self) -> str:
        """Return how long Celery's keys are kept, as a script argument."""
        return str(max(1, int(self.expires))) if self.expires else ""

    @property
    def declared(self) -> tuple[str]:
        """Return the keys that scripts declare: one that never exists, as in ``Layout``."""
        return (f"{self.prefix}qworker.none",)


def join_keys(prefix: str, options: Mapping[str, Any], expires: float | None) -> JoinKeys:
    """Return the keys with *prefix* for *options* of the result store (``result_backend_transport_options``),
    which are deleted after *expires* seconds. As in Celery for results, but not in kombu for messages, a
    prefix that ends in a letter or digit is followed by a separator."""
    if prefix and prefix[-1] not in ":_-.":
        prefix += "_"
    return JoinKeys(prefix, expires, bool(options.get("result_chord_ordered", True)))


def part_arguments(parts: Sequence[Part], keys: JoinKeys) -> list[Any]:
    """Return the arguments of ``record_parts``; invalid parts are left out."""
    arguments: list[Any] = []
    for join, numbered in by_join(part for part in parts if not part.body).items():
        arguments += ("join", join, len(numbered))
        for number, part in numbered.items():
            arguments += (number, pack_part(part))
    for part in parts:
        if part.body and may_be_id(part.join):
            score = part.number if part.number >= 0 else "+inf"
            arguments += ("chord", part.join, encoded(part.task_id), part.value, score, int(keys.sorted))
            arguments += (keys.seconds, os.urandom(8).hex(), part.body)
    return arguments


def pack_part(part: Part) -> bytes:
    """Return the value of *part* in the hash of parts."""
    return encoded(f"{part.status}\n{part.task_id}")


def unpack_part(join: str, number: bytes, value: bytes) -> Part | None:
    """Undo pack_part(); None for an invalid value."""
    try:
        status, _, task_id = value.decode(errors="surrogatepass").partition("\n")
        return Part(join, int(number), task_id, status)
    except ValueError:
        return None


def encoded(text: str) -> bytes:
    """Return *text* as bytes, whatever characters it contains."""
    return text.encode(errors="surrogatepass")
