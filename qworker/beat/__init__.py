"""beat: calls that are made at their times, once, however many processes look after them.

Modules, in reading order. When: ``schedule`` (what a schedule is), ``fields``, ``wall_clock``, ``crontab``,
``schedules`` (intervals and single instants), ``rules``, ``solar``, ``words``, ``kinds`` (which of them a
value is). What: ``entry``, ``written`` (as plain data), ``catalog`` (all entries of an app). Where: ``store``
(what is kept), ``store_memory``, ``store_sql`` with ``place_sqlite`` and ``place_server``, ``store_redis``,
``stores`` (which one an app has), ``sealed`` (what it is believed). Who calls: ``leadership`` (one of many),
``agenda`` (what is due), ``overlap`` (has the call before ended), ``calls`` (as messages), ``caution`` (whose
trouble an error is), ``service``. And ``api``, which is ``app.schedules``.
"""

from qworker.beat.crontab import crontab
from qworker.beat.kinds import maybe_schedule
from qworker.beat.rules import rrule
from qworker.beat.schedule import Schedule
from qworker.beat.schedules import clocked, schedule
from qworker.beat.solar import solar

__all__ = ["Schedule", "clocked", "crontab", "maybe_schedule", "rrule", "schedule", "solar"]
