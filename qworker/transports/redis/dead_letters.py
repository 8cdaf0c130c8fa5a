"""The Lua about dead letters, and about sweeping out what is too old.

Comes from:  ``admin.py``, ``consumer.py``.
Goes to:     a hash for each dead letter, the sorted sets ``qworker.dead`` and ``qworker.dead.<queue>`` by
             time of death.
Thread:      any; constants.
"""

from __future__ import annotations

from qworker.transports.redis.connection import Script
from qworker.transports.redis.result_rows import STORE_ROW
from qworker.transports.redis.scripts import KEEP_LETTER, PRELUDE, PUT_BACK

PORTION = 500
"""How many dead letters go through a script at a time."""

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
    notify(letter[1])
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
