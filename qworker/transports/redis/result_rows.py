"""The format of a result on Redis: Celery's key and value, and the Lua that replaces states.

Comes from:  ``backends/redis/backend.py``, and the Redis broker, which stores results together with acks.
Goes to:     Lua scripts of both, which start with STORE_ROW.
Thread:      any; constants and pure functions.

The key is ``celery-task-meta-<id>``, the value the serialised metadata, and every change is published on a
channel of the key's name, as in Celery. The stored state is read from the first bytes of the value if that is
JSON; otherwise it is stored in ``<key>.status``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qworker import states

TASK_PREFIX = "celery-task-meta-"
GROUP_PREFIX = "celery-taskset-meta-"
STATUS_SUFFIX = ".status"

FINAL, UNREADY = (
    "{{{}}}".format(", ".join(f"{state} = true" for state in sorted(group)))
    for group in (states.READY_STATES, states.UNREADY_STATES)
)
STORE_ROW = (
    f"local FINAL = {FINAL}\nlocal UNREADY = {UNREADY}"
    + """
local STATUS = '^{%s*"status":%s*"([^"]*)"'
-- pcall: an error would end the script halfway, without undoing its writes. A key of another type counts as
-- missing, and is replaced.
local function status_of(key)
  local start = redis.pcall('GETRANGE', key, 0, 99)
  if type(start) ~= 'string' or start == '' then return false end
  local beside = string.match(start, STATUS) or redis.pcall('GET', key .. '.status')
  return type(beside) == 'string' and beside
end
local function may_replace(old, new)
  if FINAL[new] then return old ~= 'SUCCESS' end
  return not FINAL[old] and (new ~= 'STARTED' or UNREADY[old])
end
-- milliseconds: '' for a result that does not expire. Returns 1 if the result was stored, 0 if the old one
-- was kept.
local function store_row(key, status, payload, milliseconds)
  local old = status_of(key)
  if old and not may_replace(old, status) then return 0 end
  local beside = string.match(payload, STATUS) ~= status
  if milliseconds == '' then
    redis.call('SET', key, payload)
    if beside then redis.call('SET', key .. '.status', status) end
  else
    redis.call('SET', key, payload, 'PX', milliseconds)
    if beside then redis.call('SET', key .. '.status', status, 'PX', milliseconds) end
  end
  redis.call('PUBLISH', key, payload)
  return 1
end
"""
)
"""Defines ``store_row``: compare-and-set by the rule of ``states.may_replace``."""

STORE_ROWS = (
    STORE_ROW
    + """
local stored = 0
for i = 1, #ARGV, 4 do stored = stored + store_row(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
return stored
"""
)
"""A script that stores any number of results; ARGV is the row_arguments() of each. Returns how many it
stored."""


def row_arguments(
    row: tuple[str, str, bytes, float | None], now: float, prefix: str = ""
) -> Sequence[str | bytes | int]:
    """Return the arguments of ``store_row`` for ``(task_id, status, payload, expires)``; *now* is in epoch
    seconds.

    prefix: of all keys of the result store. An expired result is kept for a millisecond.
    """
    task_id, status, payload, expires = row
    milliseconds = "" if expires is None else max(1, math.ceil((expires - now) * 1000))
    return (f"{prefix}{TASK_PREFIX}{task_id}", status, payload, milliseconds)
