"""The Lua that shows messages where they lie.

Comes from:  ``admin.py``.
Goes to:     the lists, the sorted sets of what is delayed, kombu's ``unacked``; they are only read.
Thread:      any; constants and pure functions.

Bodies stay in the server: of a message of ours the script cuts its body out, whose size is written in front.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.transports.lease import Peeked, Standing
from qworker.transports.redis.connection import Script
from qworker.transports.redis.envelope import Scale, from_payload
from qworker.transports.redis.layout import moment
from qworker.transports.redis.scripts import PRELUDE

PEEK = Script(
    PRELUDE
    + r"""
-- ARGV: queue, "ready", "delayed" or "leased", how many, steps…  Returns payload, when it was sent ('' if
-- unknown) and the name of its consumer of each.
local queue, most, out = ARGV[4], tonumber(ARGV[6]), {}
local function bodiless(payload)
  local before, size, after = string.match(payload, '^({"qworker": {[^%[]-"sizes": %[%d+, )(%d+)()')
  if not size or #size > 9 then return payload end
  local rest = string.sub(payload, after, -3 - tonumber(size))
  if string.sub(rest, -9) ~= '"body": "' then return payload end
  return before .. '0' .. rest .. '"}'
end
local function show(payload, worker)
  local sent = string.match(string.sub(payload, 1, 200), '"sent": ([%d%.e+]+)')
  out[#out + 1] = {bodiless(payload), sent or '', worker}
end
if ARGV[5] == 'ready' then
  for i = 7, #ARGV do
    local found = most > #out and redis.call('LRANGE', list_of(queue, ARGV[i]), #out - most, -1) or {}
    for at = #found, 1, -1 do show(found[at], '') end
  end
elseif ARGV[5] == 'delayed' then
  local found = most > 0 and redis.call('ZRANGE', delayed_of(queue), 0, most - 1) or {}
  for _, member in ipairs(found) do show(string.match(member, '^%d+ %d+ (.*)$') or member, '') end
else
  for _, field in ipairs(redis.call('HKEYS', UNACKED)) do
    if #out >= most then break end
    local generation, whose = string.match(field, '^qworker:(%d+):%d+:%d+:(.*)$')
    if not generation or whose == queue then
      local value = redis.call('HGET', UNACKED, field)
      local payload, key = string.match(value, '^%[(.*), "[^"]*", "([^"]*)"%]$')
      if payload and (generation or key == queue) then
        local owner = generation and P .. 'qworker.owner.' .. generation
        show(payload, owner and redis.call('HGET', owner, 'name') or '')
      end
    end
  end
end
return out
"""
)


def peeked(row: Sequence[bytes], queue: str, standing: Standing, scale: Scale) -> Peeked:
    """What PEEK has returned of one message of *queue*."""
    payload, sent, worker = row
    message = from_payload(payload, scale, queue)
    return Peeked(
        queue,
        standing,
        message.priority,
        message.due,
        moment(sent),
        message.deliveries,
        message.headers,
        worker.decode("utf-8", "replace"),
    )
