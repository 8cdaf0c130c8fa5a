"""The Lua scripts in Redis: claiming, settling, renewing and giving back, each in one step.

Comes from:  ``consumer.py``, ``reclaim.py``, ``broker.py``.
Goes to:     the server, through ``connection.Script``.
Thread:      any; constants.

A message on lease is a field of kombu's hash ``unacked``, named
``qworker:<generation>:<number>:<step>:<queue>``, with kombu's value ``[payload, exchange, routing key]``, so
that stock consumers can restore it. That field is the fence: only a consumer that still finds it can settle
the message. Payloads are never decoded here, only joined and cut as text.

A member of ``qworker.delayed.<queue>`` is the step, a number that keeps the order of equal due times, and the
payload.

KEYS of all: unacked, unacked_index, qworker.owners. ARGV of all begins with the prefix of all keys, the
prefix of the markers of queues (see ``waiting.py``), and the wall clock of the caller in epoch seconds.
"""

from __future__ import annotations

from qworker.transports.redis.connection import Script
from qworker.transports.redis.join_rows import RECORD_PARTS
from qworker.transports.redis.result_rows import STORE_ROW

PRELUDE = r"""
local UNACKED, INDEX, OWNERS = KEYS[1], KEYS[2], KEYS[3]
local P, MARKER, WALL = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- Out of memory, a server refuses a script whose first write needs memory. This one does not.
redis.call('DEL', P .. 'qworker.none')
local function list_of(queue, step)
  if step == '0' then return P .. queue end
  return P .. queue .. '\6\22' .. step
end
local function delayed_of(queue) return P .. 'qworker.delayed.' .. queue end
local function tail_of(queue) return ', "", ' .. cjson.encode(queue) .. ']' end
local function seconds(given)
  if given ~= '' then return tonumber(given) end
  local now = redis.call('TIME')
  return tonumber(now[1]) + tonumber(now[2]) / 1000000
end
local function number_after(key)
  local now = redis.call('TIME')
  local number = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('GET', key) or 0)
  if last and last < 2^53 - 1 then number = math.max(number, last + 1) end -- else not one of our numbers
  number = string.format('%.0f', number)
  redis.call('SET', key, number)
  return number
end
local function exact(number) return string.format('%.6f', number) end
local function in_portions(command, key, values)
  for i = 1, #values, 4000 do
    redis.call(command, key, unpack(values, i, math.min(i + 3999, #values)))
  end
end
local marked = {}
local function mark(queue)
  if not marked[queue] then
    marked[queue] = true
    redis.call('ZADD', MARKER .. queue, 0, '0')
  end
end
"""

PUT_BACK = r"""
local STATE = '^{%s*"qworker":%s*{%s*"deliveries":%s*(%d+),%s*"redelivered":%s*(%a+),%s*'
  .. '"parked":%s*(%d+),%s*"due":%s*([^,%s]+),%s*()'
local function stated(payload)
  local deliveries, redelivered, parked, due, rest = string.match(payload, STATE)
  if deliveries then
    -- Invalid values, written by other programs, count as missing.
    if #deliveries > 9 then deliveries = '0' end
    if #parked > 9 then parked = '0' end
    if redelivered ~= 'true' then redelivered = 'false' end
    if not string.match(due, '^%d[%d.e+]*$') or not tonumber(due) or tonumber(due) > 253402300799 then
      due = 'null'
    end
    return deliveries, redelivered, parked, due, string.sub(payload, rest)
  end
  return '0', 'false', '0', 'null', '"sent": null}, ' .. string.sub(payload, 2)
end
local function joined(deliveries, redelivered, parked, due, rest)
  return '{"qworker": {"deliveries": ' .. deliveries .. ', "redelivered": ' .. redelivered ..
    ', "parked": ' .. parked .. ', "due": ' .. due .. ', ' .. rest
end
local function parts_of(field)
  local number, step, queue = string.match(field, '^qworker:%d+:(%d+):(%d+):(.*)$')
  return tonumber(number), step, queue
end
local function payload_of(value, queue) return string.sub(value, 2, -#tail_of(queue) - 1) end
-- counted, parked: added to the counters, 0 or 1. due: epoch seconds, 'null', or '' to keep it.
local function put_back(field, value, counted, parked, redelivered, due)
  local _, step, queue = parts_of(field)
  local deliveries, before, times, old, rest = stated(payload_of(value, queue))
  if due == '' then due = old end
  if redelivered then before = 'true' end
  local payload = joined(deliveries + counted, before, times + parked, due, rest)
  if due ~= 'null' and tonumber(due) > WALL then
    redis.call('ZADD', delayed_of(queue), due, step .. string.format(' %020.0f ',
    WALL * 1000000000) .. payload)
  else
    redis.call('RPUSH', list_of(queue, step), payload)
  end
  mark(queue)
end
"""

KEEP_LETTER = r"""
-- place: "dead" for dead letters, "failed" for failed tasks.
local function keep_letter(place, tag, queue, step, reason, died_at, payload)
  local kept = P .. 'qworker.' .. place
  redis.call('HSET', P .. (place == 'dead' and 'qworker.letter.' or 'qworker.failure.') .. tag,
    'queue', queue, 'step', step, 'reason', reason, 'died_at', died_at, 'payload', payload)
  redis.call('ZADD', kept, died_at, tag)
  redis.call('ZADD', kept .. '.' .. queue, died_at, tag)
end
"""

LEASE = Script(
    PRELUDE
    + r"""
-- ARGV: generation, limit, limit of delayed messages, until when these are due, maximum bytes, first number,
-- for how many milliseconds it watches queues that nobody else watches ('': not at all), number of steps,
-- steps…, queues…
-- Returns false if the consumer was considered dead; else the next due time ('' for none), the number of the
-- last revocation, for each queue '1' if it watches it and '0' if not ('' if it was not asked), and field,
-- payload, field, payload…
local generation, limit, delayed_limit = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local most, number, watch, steps = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11])
local score = redis.call('ZSCORE', OWNERS, generation)
local out, hash, index, due, size = {'', '0', ''}, {}, {}, false, 0
-- The command may arrive after its sender had given it up: see 'orphaned' below.
if not score or number < tonumber(redis.call('HGET', P .. 'qworker.owner.' .. generation, 'from') or 0) then
  -- The BZPOPMIN before it may have taken a marker, from those who would have taken the messages.
  for i = 12 + steps, #ARGV do mark(ARGV[i]) end
  return score and out
end
local function take(queue, step, payload, tail)
  local field = 'qworker:' .. generation .. ':' .. number .. ':' .. step .. ':' .. queue
  number = number + 1
  size = size + #payload
  hash[#hash + 1] = field
  hash[#hash + 1] = '[' .. payload .. tail
  index[#index + 1] = score
  index[#index + 1] = field
  out[#out + 1] = field
  out[#out + 1] = payload
end
for i = 12 + steps, #ARGV do
  local queue = ARGV[i]
  local delayed, tail = delayed_of(queue), tail_of(queue)
  local earliest = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  if earliest and tonumber(earliest) <= WALL then
    local promoted = redis.call('ZRANGEBYSCORE', delayed, '-inf', ARGV[3], 'LIMIT', 0, 1000)
    for _, member in ipairs(promoted) do
      local step, payload = string.match(member, '^(%d+) %d+ (.*)$')
      redis.call('LPUSH', list_of(queue, step), payload)
    end
    in_portions('ZREM', delayed, promoted)
    earliest = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  end
  if delayed_limit > 0 and earliest and tonumber(earliest) <= tonumber(ARGV[7]) then
    local soon = redis.call('ZRANGEBYSCORE', delayed, '-inf', ARGV[7], 'LIMIT', 0, delayed_limit)
    local taken = {}
    for _, member in ipairs(soon) do
      if size >= most then break end
      local step, payload = string.match(member, '^(%d+) %d+ (.*)$')
      take(queue, step, payload, tail)
      taken[#taken + 1] = member
    end
    delayed_limit = delayed_limit - #taken
    in_portions('ZREM', delayed, taken)
    earliest = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  end
  if earliest and (not due or tonumber(earliest) < tonumber(due)) then due = earliest end
  local left = false
  for s = 12, 11 + steps do
    local list, payload = list_of(queue, ARGV[s]), true
    while payload and limit > 0 and size < most do
      payload = redis.call('RPOP', list)
      if payload then
        take(queue, ARGV[s], payload, tail)
        limit = limit - 1
      end
    end
    left = left or payload and redis.call('EXISTS', list) == 1
  end
  if left then mark(queue) else redis.call('DEL', MARKER .. queue) end
  if watch ~= '' then
    local watcher = P .. 'qworker.watcher.' .. queue
    local mine = (redis.call('GET', watcher) or generation) == generation
    if mine then redis.call('SET', watcher, generation, 'PX', watch) end
    out[3] = out[3] .. (mine and '1' or '0')
  end
end
in_portions('HSET', UNACKED, hash)
in_portions('ZADD', INDEX, index)
out[1] = due or ''
out[2] = redis.call('GET', P .. 'qworker.revoked.number') or '0'
return out
"""
)

SETTLE = Script(
    PRELUDE
    + STORE_ROW
    + RECORD_PARTS
    + PUT_BACK
    + KEEP_LETTER
    + r"""
-- ARGV: operations, each a word and its arguments; parts are recorded if the operation before them found its
-- message. Returns the fields that no longer existed.
local i, lost, gone, returned, done = 4, {}, {}, {}, true
local function forget(field)
  if redis.call('HDEL', UNACKED, field) == 0 then
    lost[#lost + 1] = field
    return false
  end
  gone[#gone + 1] = field
  return true
end
local function dead_letter(place, field, tag, reason, counted)
  local value = redis.call('HGET', UNACKED, field)
  if not forget(field) then return false end
  local _, step, queue = parts_of(field)
  local deliveries, redelivered, parked, due, rest = stated(payload_of(value, queue))
  keep_letter(place, tag, queue, step, reason, ARGV[3],
    joined(deliveries + counted, redelivered, parked, due, rest))
  return true
end
while i <= #ARGV do
  local kind, field = ARGV[i], ARGV[i + 1]
  if kind == 'ack' then
    done = forget(field)
    i = i + 2
  elseif kind == 'ack and store' then
    done = forget(field)
    if done then store_row(ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]) end
    i = i + 6
  elseif kind == 'store' then
    store_row(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    done = true
    i = i + 5
  elseif kind == 'store nothing' then
    done = true
    i = i + 1
  elseif kind == 'parts' then
    local last = i + 2 + tonumber(ARGV[i + 1])
    if done then record_parts(ARGV[i + 2], i + 3, last) end
    i = last + 1
  elseif kind == 'dead letter' then
    done = dead_letter(ARGV[i + 2], field, ARGV[i + 3], ARGV[i + 4], tonumber(ARGV[i + 5]))
    i = i + 6
  elseif kind == 'dead letter and store' then
    done = dead_letter(ARGV[i + 2], field, ARGV[i + 3], ARGV[i + 4], tonumber(ARGV[i + 5]))
    if done then
      store_row(ARGV[i + 6], ARGV[i + 7], ARGV[i + 8], ARGV[i + 9])
    end
    i = i + 10
  else
    local value = redis.call('HGET', UNACKED, field)
    if forget(field) then returned[#returned + 1] = {parts_of(field), field, value, i} end
    i = i + 6
  end
end
-- The last one first, so that they are delivered in their original order.
table.sort(returned, function(a, b) return a[1] > b[1] end)
for _, each in ipairs(returned) do
  local at = each[4]
  put_back(each[2], each[3], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4] == '1',
  ARGV[at + 5])
end
in_portions('ZREM', INDEX, gone)
return lost
"""
)

REGISTER = Script(
    PRELUDE
    + r"""
-- ARGV: current time of the leases ('': the server's clock), lease seconds, number of queues, queues…, names
-- and values of the owner's record. Returns the new generation.
local generation = number_after(P .. 'qworker.epoch')
redis.call('ZADD', OWNERS, exact(seconds(ARGV[4]) + tonumber(ARGV[5])), generation)
local queues = tonumber(ARGV[6])
for i = 7, 6 + queues do redis.call('SADD', P .. 'qworker.queues', ARGV[i]) end
redis.call('HSET', P .. 'qworker.owner.' .. generation, unpack(ARGV, 7 + queues))
return generation
"""
)

EXTEND = Script(
    PRELUDE
    + r"""
-- ARGV: generation, now, lease seconds, presence, fields…  Returns false if the consumer was considered dead;
-- else the number of expired leases, and in how many seconds the next one expires unless it is renewed.
if not redis.call('ZSCORE', OWNERS, ARGV[4]) then return false end
local now = seconds(ARGV[5])
local expires = exact(now + tonumber(ARGV[6]))
redis.call('ZADD', OWNERS, 'XX', expires, ARGV[4])
redis.call('HSET', P .. 'qworker.owner.' .. ARGV[4], 'presence', ARGV[7])
for i = 8, #ARGV do redis.call('ZADD', INDEX, 'XX', expires, ARGV[i]) end
local next = redis.call('ZRANGEBYSCORE', OWNERS, '(' .. exact(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
return {redis.call('ZCOUNT', OWNERS, '-inf', exact(now)), exact(tonumber(next) - now)}
"""
)

MARK = Script(PRELUDE + "for i = 4, #ARGV do mark(ARGV[i]) end return 1")
"""ARGV: queues… Sets their markers, also if the server has no memory left."""

RUNNING = Script(
    PRELUDE
    + r"""
-- ARGV: generation, tags of the messages that the consumer is running.
if redis.call('ZSCORE', OWNERS, ARGV[4]) then
  redis.call('HSET', P .. 'qworker.owner.' .. ARGV[4], 'running', ARGV[5])
end
return 1
"""
)

GIVE_BACK = Script(
    PRELUDE
    + PUT_BACK
    + r"""
-- ARGV: generation, now, whose, from, up to, numbers that count as a delivery…
-- whose: 'own' (the consumer leaves), 'dead' (it has died), 'silent' (only if its lease has expired, and it
-- holds messages or expired a day ago), 'orphaned' (only messages with numbers from … up to …; the consumer
-- stays registered).
-- Returns false if there was nothing to do; else the number of returned messages, and how many of them count
-- as a delivery.
local generation, whose, from, to = ARGV[4], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local expires = redis.call('ZSCORE', OWNERS, generation)
if not expires then return false end
if whose == 'silent' and tonumber(expires) >= seconds(ARGV[5]) then return false end
local counts, counted = {}, 0
for i = 9, #ARGV do counts[tonumber(ARGV[i])] = true end
local start, held = 'qworker:' .. generation .. ':', {}
for _, field in ipairs(redis.call('HKEYS', UNACKED)) do
  if string.sub(field, 1, #start) == start then
    local number = parts_of(field)
    if number >= from and number < to then held[#held + 1] = {number, field} end
  end
end
if whose == 'silent' and #held == 0 and tonumber(expires) >= seconds(ARGV[5]) - 86400 then return false end
table.sort(held, function(a, b) return a[1] > b[1] end)
local again = whose == 'dead' or whose == 'silent'
local gone = {}
for _, each in ipairs(held) do
  local value, count = redis.call('HGET', UNACKED, each[2]), 0
  if counts[each[1]] then
    count = 1
    counted = counted + 1
  end
  put_back(each[2], value, count, 0, again, '')
  gone[#gone + 1] = each[2]
end
in_portions('HDEL', UNACKED, gone)
in_portions('ZREM', INDEX, gone)
if whose == 'orphaned' then
  local owner = P .. 'qworker.owner.' .. generation
  redis.call('HSET', owner, 'from', math.max(to, tonumber(redis.call('HGET', owner, 'from') or 0)))
else
  local owner = P .. 'qworker.owner.' .. generation
  for queue in string.gmatch(redis.call('HGET', owner, 'queues') or '', '[^\n]+') do
    local watcher = P .. 'qworker.watcher.' .. queue
    if redis.call('GET', watcher) == generation then -- a waiting worker takes its place
      redis.call('DEL', watcher)
      mark(queue)
    end
  end
  redis.call('ZREM', OWNERS, generation)
  redis.call('DEL', owner, P .. 'qworker.wake.' .. generation)
end
return {#held, counted}
"""
)

RESTORE = Script(
    PRELUDE
    + r"""
-- ARGV: field, list, payload and queue of a message that a consumer of kombu left behind. Returns 1 if it
-- existed, else 0.
if redis.call('HDEL', UNACKED, ARGV[4]) == 0 then return 0 end
redis.call('ZREM', INDEX, ARGV[4])
redis.call('RPUSH', ARGV[5], ARGV[6])
mark(ARGV[7])
return 1
"""
)

QUEUES = Script(
    PRELUDE
    + r"""
-- ARGV: steps…  Returns for each queue its name, the numbers of ready, delayed, leased and dead messages, and
-- when the oldest was sent ('' if unknown).
local leased, out = {}, {}
for _, field in ipairs(redis.call('HKEYS', UNACKED)) do
  local queue = string.match(field, '^qworker:%d+:%d+:%d+:(.*)$')
  if not queue then
    queue = string.match(redis.call('HGET', UNACKED, field), '"([^"]*)"%]$')
  end
  if queue then leased[queue] = (leased[queue] or 0) + 1 end
end
for _, queue in ipairs(redis.call('SMEMBERS', P .. 'qworker.queues')) do
  local ready, oldest = 0, ''
  for i = 4, #ARGV do
    local list = list_of(queue, ARGV[i])
    ready = ready + redis.call('LLEN', list)
    local last = redis.call('LINDEX', list, -1)
    local sent = last and string.match(string.sub(last, 1, 200), '"sent": ([%d%.]+)')
    if sent and (oldest == '' or tonumber(sent) < tonumber(oldest)) then oldest = sent end
  end
  out[#out + 1] = {queue, ready, redis.call('ZCARD', delayed_of(queue)), leased[queue] or 0,
    redis.call('ZCARD', P .. 'qworker.dead.' .. queue), oldest}
end
return out
"""
)

PURGE = Script(
    PRELUDE
    + r"""
-- ARGV: queue, steps…  Returns the number of deleted messages.
local gone = redis.call('ZCARD', delayed_of(ARGV[4]))
redis.call('UNLINK', delayed_of(ARGV[4]))
for i = 5, #ARGV do
  gone = gone + redis.call('LLEN', list_of(ARGV[4], ARGV[i]))
  redis.call('UNLINK', list_of(ARGV[4], ARGV[i]))
end
return gone
"""
)

FLUSH = Script(
    PRELUDE
    + r"""
-- ARGV: queue. Moves at most a thousand delayed messages to the lists, and returns their number.
local members = redis.call('ZRANGE', delayed_of(ARGV[4]), 0, 999)
for _, member in ipairs(members) do
  local step, payload = string.match(member, '^(%d+) %d+ (.*)$')
  redis.call('LPUSH', list_of(ARGV[4], step), payload)
end
in_portions('ZREM', delayed_of(ARGV[4]), members)
if #members > 0 then mark(ARGV[4]) end
return #members
"""
)
