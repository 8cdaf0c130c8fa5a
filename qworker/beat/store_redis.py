"""Schedules on Redis or Valkey.

Comes from:  ``stores.py``.
Goes to:     the keys ``qworker.beat.<scope>.*``: ``lease``, ``edits``, ``versions``, ``states``, ``pending``,
             and for each entry ``slots.<name>``; kombu's lists of messages, if the broker is the same
             database.
Thread:      any; each use borrows a connection.

Each operation is a script. Those that record states and calls check the lease first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qworker.beat.store import (
    PENDING,
    SENT,
    EntryRow,
    EntryState,
    Firing,
    Lease,
    ScheduleStore,
    Slot,
    is_sayable,
    micro,
    once,
)
from qworker.clock import Clock
from qworker.contracts import App
from qworker.errors import BackendError, LeaseLost
from qworker.process.crash_points import crash_point
from qworker.transports.lease import Sender
from qworker.transports.portions import portions
from qworker.transports.redis.connection import Links, Script
from qworker.transports.redis.sender import PUBLISH, RedisSender
from qworker.transports.redis.url import Endpoint, endpoint

MICROSECONDS = 1_000_000
PORTION = 1000

_PRELUDE = """
local P = ARGV[1]
local function lease()
  local found = redis.call('HMGET', P .. 'lease', 'holder', 'generation', 'beats', 'version', 'about')
  local function number(text) return text and tonumber(text) or 0 end
  return {found[1] or '', number(found[2]), number(found[3]), number(found[4]), found[5] or ''}
end
local function ours(holder, generation)
  local now = lease()
  return now[1] == holder and now[2] == tonumber(generation)
end
local function over() return redis.error_reply('LEASELOST ' .. lease()[1]) end
"""
_LOOK = Script(_PRELUDE + "return lease()")
_TAKE = Script(
    _PRELUDE
    + """
local now = lease()
if now[1] == ARGV[3] and now[2] == tonumber(ARGV[4]) and now[3] == tonumber(ARGV[5]) then
  redis.call('HSET', P .. 'lease', 'holder', ARGV[2], 'generation', now[2] + 1, 'beats', now[3] + 1,
             'about', ARGV[6])
end
return lease()
"""
)
_RENEW = Script(
    _PRELUDE
    + """
if ours(ARGV[2], ARGV[3]) then redis.call('HSET', P .. 'lease', 'beats', lease()[3] + 1) end
return lease()
"""
)
_RESIGN = Script(
    _PRELUDE
    + """
if ours(ARGV[2], ARGV[3]) then redis.call('HSET', P .. 'lease', 'holder', '') end
return 1
"""
)
_ROWS = Script(
    _PRELUDE
    + """
local out, after = {}, tonumber(ARGV[2])
local function add(name)
  local version = redis.call('ZSCORE', P .. 'versions', name)
  out[#out + 1] = {name, version or '0', redis.call('HGET', P .. 'edits', name),
                   redis.call('HGET', P .. 'states', name)}
end
if after < 0 then
  local known = {}
  for _, name in ipairs(redis.call('ZRANGE', P .. 'versions', 0, -1)) do known[name] = true; add(name) end
  for _, name in ipairs(redis.call('HKEYS', P .. 'states')) do if not known[name] then add(name) end end
else
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'versions', '(' .. ARGV[2], '+inf')) do add(name) end
end
return out
"""
)
_ROW = Script(
    _PRELUDE
    + """
local name = ARGV[2]
return {redis.call('ZSCORE', P .. 'versions', name), redis.call('HGET', P .. 'edits', name),
        redis.call('HGET', P .. 'states', name)}
"""
)
_EDIT = Script(
    _PRELUDE
    + """
local name = ARGV[2]
if tonumber(redis.call('ZSCORE', P .. 'versions', name) or 0) ~= tonumber(ARGV[3]) then return 0 end
local version = lease()[4] + 1
redis.call('HSET', P .. 'lease', 'version', version)
redis.call('ZADD', P .. 'versions', version, name)
if ARGV[4] == '' then
  redis.call('HDEL', P .. 'edits', name)
else
  redis.call('HSET', P .. 'edits', name, ARGV[4])
end
return 1
"""
)
_NOTE = Script(
    _PRELUDE
    + """
if not ours(ARGV[2], ARGV[3]) then return over() end
for i = 4, #ARGV, 2 do redis.call('HSET', P .. 'states', ARGV[i], ARGV[i + 1]) end
return 1
"""
)
_PRUNE = Script(
    _PRELUDE
    + """
if not ours(ARGV[2], ARGV[3]) then return over() end
for i = 4, #ARGV, 2 do
  local name = ARGV[i]
  local version = tonumber(redis.call('ZSCORE', P .. 'versions', name) or 0)
  if version == tonumber(ARGV[i + 1]) and redis.call('HEXISTS', P .. 'edits', name) == 0 then
    redis.call('ZREM', P .. 'versions', name)
    redis.call('HDEL', P .. 'states', name)
  end
end
return 1
"""
)
_TAKEN = Script(
    _PRELUDE
    + """
if not ours(ARGV[2], ARGV[3]) then return over() end
local out = {}
for i = 4, #ARGV, 2 do out[#out + 1] = redis.call('HEXISTS', P .. 'slots.' .. ARGV[i], ARGV[i + 1]) end
return out
"""
)
_FIRE = Script(
    _PRELUDE
    + """
-- ARGV: prefix, holder, generation, number of slots, whether they are pending; name, due and value of each;
-- number of states; name and state of each; then what is published.
if not ours(ARGV[2], ARGV[3]) then return over() end
local slots, pending, i = tonumber(ARGV[4]), ARGV[5] == '1', 6
for n = 1, slots do
  if redis.call('HEXISTS', P .. 'slots.' .. ARGV[i], ARGV[i + 1]) == 1 then return 0 end
  i = i + 3
end
i = 6
for n = 1, slots do
  redis.call('HSET', P .. 'slots.' .. ARGV[i], ARGV[i + 1], ARGV[i + 2])
  redis.call('ZADD', P .. (pending and 'pending' or 'dues'), ARGV[i + 1], ARGV[i + 1] .. ' ' .. ARGV[i])
  i = i + 3
end
local states = tonumber(ARGV[i])
i = i + 1
for n = 1, states do
  redis.call('HSET', P .. 'states', ARGV[i], ARGV[i + 1])
  i = i + 2
end
"""
    + PUBLISH
    + "return 1"
)
_PENDING = Script(
    _PRELUDE
    + """
local out = {}
for _, member in ipairs(redis.call('ZRANGE', P .. 'pending', 0, -1)) do
  local due, name = string.match(member, '^(%-?%d+) (.*)$')
  local value = due and redis.call('HGET', P .. 'slots.' .. name, due)
  if value then
    out[#out + 1] = {name, due, value}
  else
    redis.call('ZREM', P .. 'pending', member)
  end
end
return out
"""
)
_SENT = Script(
    _PRELUDE
    + """
if not ours(ARGV[2], ARGV[3]) then return over() end
for i = 4, #ARGV do
  if redis.call('ZREM', P .. 'pending', ARGV[i]) == 1 then
    redis.call('ZADD', P .. 'dues', string.match(ARGV[i], '^%-?%d+'), ARGV[i])
  end
end
return 1
"""
)
_SLOTS = Script(
    _PRELUDE
    + """
local out, name = redis.call('HGETALL', P .. 'slots.' .. ARGV[2]), ARGV[2]
for i = 1, #out, 2 do
  if redis.call('ZSCORE', P .. 'pending', out[i] .. ' ' .. name) then out[i] = 'p' .. out[i] end
end
return out
"""
)
_SWEEP = Script(
    _PRELUDE
    + """
local found = redis.call('ZRANGEBYSCORE', P .. 'dues', '-inf', '(' .. ARGV[2], 'LIMIT', 0, ARGV[3])
for _, member in ipairs(found) do
  local due, name = string.match(member, '^(%-?%d+) (.*)$')
  if due then redis.call('HDEL', P .. 'slots.' .. name, due) end
  redis.call('ZREM', P .. 'dues', member)
end
return #found
"""
)


class RedisScheduleStore(ScheduleStore):
    """where: the server and database. prefix: of the keys."""

    def __init__(self, where: Endpoint, prefix: str, clock: Clock) -> None:
        self._where = where
        self._prefix = prefix
        self._clock = clock
        self._links = Links(where)

    def _call(self, script: Script, *arguments: Any, tries: int = 2) -> Any:
        declared = (f"{self._prefix}none",)  # never exists, as in the broker's Layout
        try:
            return self._links.store(
                lambda link: script.call(link, declared, (self._prefix, *arguments)), tries
            )
        except BackendError as error:
            if "LEASELOST" in str(error):
                raise LeaseLost("another process is now the leader of the schedulers") from None
            raise

    def is_with(self, sender: Sender) -> bool:
        return isinstance(sender, RedisSender) and sender.place == self._where.place

    # -- the lease --

    def look(self) -> Lease:
        return _lease(self._call(_LOOK))

    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        return _lease(self._call(_TAKE, holder, *known[:3], about))

    def renew(self, lease: Lease) -> Lease:
        return _lease(self._call(_RENEW, lease.holder, lease.generation))

    def resign(self, lease: Lease) -> None:
        self._call(_RESIGN, lease.holder, lease.generation)

    # -- entries --

    def rows(self, after: int = -1) -> list[EntryRow]:
        rows = [_row(name, *rest) for name, *rest in self._call(_ROWS, after)]
        return [row for row in rows if row is not None]

    def row(self, name: str) -> EntryRow | None:
        if not is_sayable(name):
            return None
        version, edit, state = self._call(_ROW, name)
        return None if version is None and state is None else _row(name.encode(), version, edit, state)

    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        return bool(self._call(_EDIT, name, known, edit or b"", tries=1))

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        for some in portions(states.items(), PORTION):
            pairs = [part for name, state in some for part in (name, _packed(state))]
            self._call(_NOTE, lease.holder, lease.generation, *pairs)

    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        for some in portions(versions.items(), PORTION):
            pairs = [part for pair in some for part in pair]
            self._call(_PRUNE, lease.holder, lease.generation, *pairs)

    # -- slots --

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        ours, firings = (lease.holder, lease.generation), once(firings)
        while True:
            wanted = [part for each in firings for part in (each.name, micro(each.due))]
            taken = self._call(_TAKEN, *ours, *wanted)
            free = [each for each, there in zip(firings, taken, strict=True) if not there]
            if self._take_slots(ours, free, firings, sender):
                break
        if free and not self.is_with(sender):
            self._send(lease, free, sender)
        return free

    def _take_slots(
        self, ours: tuple[str, int], free: list[Firing], firings: Sequence[Firing], sender: Sender
    ) -> bool:
        """Take the free slots, and publish; False when one of them is no longer free."""
        now, pending = micro(self._clock.now()), not self.is_with(sender)
        arguments: list[Any] = [len(free), int(pending)]
        for each in free:
            arguments += (each.name, micro(each.due), json.dumps([now, each.task_id]))
        states = {each.name: each.state for each in firings}
        arguments.append(len(states))
        for name, state in states.items():
            arguments += (name, _packed(state))
        if not pending and free:
            assert isinstance(sender, RedisSender)
            arguments += sender.commands([envelope for each in free for envelope in each.envelopes])
        crash_point("slots-taken")
        taken = bool(self._call(_FIRE, *ours, *arguments, tries=1))
        crash_point("entries-published")
        return taken

    def pending(self) -> list[Slot]:
        slots = [_slot(name, due, value, PENDING) for name, due, value in self._call(_PENDING)]
        return [slot for slot in slots if slot is not None]

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        if slots:
            members = [f"{micro(due)} {name}" for name, due in slots]
            self._call(_SENT, lease.holder, lease.generation, *members)

    def slots(self, name: str, most: int = 100) -> list[Slot]:
        if not is_sayable(name):
            return []
        found = self._call(_SLOTS, name)
        slots = [
            _slot(name.encode(), due.removeprefix(b"p"), value, PENDING if due.startswith(b"p") else SENT)
            for due, value in zip(found[::2], found[1::2], strict=True)
        ]
        whole = [slot for slot in slots if slot is not None]
        return sorted(whole, key=lambda slot: slot.due, reverse=True)[:most]

    def sweep(self, before: float) -> int:
        return int(self._call(_SWEEP, micro(before), PORTION))

    def close(self) -> None:
        self._links.close()


def open_redis_store(app: App, url: str, scope: str) -> RedisScheduleStore:
    """Return the store at *url*, with the broker's options if it is the broker's URL, else with those of the
    result store."""
    conf = app.conf
    broker = url == app.broker.url
    options = dict(conf.broker_transport_options if broker else conf.result_backend_transport_options)
    tls = conf.broker_use_ssl if broker else conf.redis_backend_use_ssl
    where = endpoint(url, options, tls, "beat_store")
    key = scope.replace("%", "%25").replace(".", "%2E")  # because a dot ends the scope
    return RedisScheduleStore(where, f"{where.key_prefix(options)}qworker.beat.{key}.", app.clock)


def _lease(found: Sequence[Any]) -> Lease:
    holder, generation, beats, version, about = found
    return Lease(
        holder.decode("utf-8", "replace"),
        int(generation),
        int(beats),
        int(version),
        about.decode("utf-8", "replace"),
    )


def _row(name: bytes, version: bytes | None, edit: bytes | None, state: bytes | None) -> EntryRow | None:
    """Return None for an invalid name, which this module did not write."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    return EntryRow(text, int(float(version or 0)), edit, None if state is None else _unpacked(state))


def _packed(state: EntryState) -> str:
    return json.dumps(state)


def _unpacked(text: bytes) -> EntryState | None:
    """Return None for an invalid state, so that the entry starts afresh."""
    try:
        return EntryState.read(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _slot(name: bytes, due: bytes, value: bytes, outcome: str) -> Slot | None:
    """Return None for an invalid value, which this module did not write."""
    try:
        at, task_id = json.loads(value)
        return Slot(name.decode(), int(due) / MICROSECONDS, at / MICROSECONDS, str(task_id), outcome)
    except (ValueError, TypeError, RecursionError):
        return None
