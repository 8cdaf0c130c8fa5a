"""RabbitMQ as a place for the contract suite: one prefix of queue names for each directory.

Comes from:  lease_places.
Goes to:     the RabbitMQ server that the tests are told of.

RabbitMQ pushes messages by itself: what was published a moment ago is on its way. Here lease() waits until
nothing comes any more, so that the suite, which expects of brokers that they are asked, can be held against
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qworker.errors import BrokerUnavailable
from qworker.transports.amqp.broker import AMQPBroker
from qworker.transports.amqp.consumer import AMQPConsumer
from qworker.transports.amqp.inbox import MOST
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.queues import DEAD, REVOKED, Queues
from qworker.transports.lease import Broker, Claim, Leased, Revocation
from tests.servers import require

QUIET = 0.05
"""Seconds in which nothing comes."""


class PatientConsumer(AMQPConsumer):
    """Reads all that is on its way before it answers."""

    def _settle_down(self) -> None:
        while self._subscription is not None and self._subscription.link.alive:
            try:
                if not self._subscription.link.read(QUIET):
                    return
            except BrokerUnavailable:
                return

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        assert self._subscription is not None
        self._subscription.inbox.prefetch.ask(MOST)  # as a worker of many short tasks
        self._subscription.resize()
        return generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        taken: list[Leased] = []
        while True:
            self._settle_down()
            claim = super().lease(queues, limit - len(taken), delayed_limit, eta_window)
            taken += claim.messages
            if not claim.messages or len(taken) >= limit:
                return claim._replace(messages=taken)

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        self._settle_down()
        return super().revoked_since(cursor)


class PatientBroker(AMQPBroker):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.consumer = PatientConsumer(self.server, self._publisher)


class AMQPPlace:
    """cannot: the tests of the suite that ask for what RabbitMQ does not have, and why."""

    cannot = {
        **dict.fromkeys(
            (
                "test_a_delayed_message_is_never_early",
                "test_delayed_messages_do_not_hold_back_others",
                "test_a_wall_clock_set_back_makes_nothing_early",
                "test_near_messages_are_taken_ahead_within_the_horizon",
                "test_near_messages_have_a_limit_of_their_own",
                "test_next_due_is_the_earliest_of_the_queues",
                "test_thousands_fall_due_at_once",
                "test_a_release_may_be_for_later",
                "test_a_purge_leaves_what_runs",
            ),
            "delays run on the server's clock, which no test can move: tests/integration/test_amqp.py waits "
            "for them",
        ),
        **dict.fromkeys(
            (
                "test_a_silent_holder_is_taken_for_dead",
                "test_leases_run_out_in_real_time_too",
                "test_marks_of_messages_that_were_settled_count_nothing",
                "test_a_stopped_process_loses_its_lease",
                "test_what_a_killed_process_held_is_back_at_once",
                "test_the_dead_are_reclaimed_once",
                "test_a_child_neither_holds_nor_keeps_its_parents_leases",
            ),
            "the lease is the connection, and the server gives back what was held without telling of it",
        ),
        **dict.fromkeys(
            (
                "test_an_ack_removes_the_message_and_stores_its_result",
                "test_a_result_may_be_stored_by_itself",
                "test_a_settled_result_never_goes_back",
                "test_all_kinds_of_settlement_go_in_one_step",
                "test_what_is_not_ours_is_named_and_left_alone",
                "test_an_old_generation_settles_nothing",
                "test_a_retried_dead_letter_leaves_no_failure_behind",
                "test_sweeping_takes_expired_results",
                "test_a_sweep_of_very_much_is_done_in_portions",
                "test_what_is_dead_lettered_is_a_dead_letter",
            ),
            "results are kept in a store of their own",
        ),
        **dict.fromkeys(
            (
                "test_a_release_puts_the_message_where_it_was",
                "test_a_release_says_why",
                "test_who_resigns_leaves_everything_uncounted",
            ),
            "whatever comes back is marked as redelivered",
        ),
        "test_no_queue_waits_for_another_to_run_dry": "who registers says which queues it consumes",
        **dict.fromkeys(
            (
                "test_every_waiter_hears_of_a_push",
                "test_dead_letters_are_retried_with_a_clean_count",
                "test_what_is_leased_is_not_leased_again",
                "test_what_comes_back_is_news_to_the_others",
                "test_the_doorbell_rings_in_other_processes",
                "test_taking_more_renews_what_is_held",
                "test_parent_and_child_hold_leases_of_their_own",
                "test_every_push_of_many_threads_is_stored_when_it_returns",
                "test_thousands_of_dead_letters_go_at_once",
                "test_no_tag_is_given_twice",
            ),
            "up to a prefetch, a message is sent to one consumer at once, asked for or not, and only that "
            "one hears of it",
        ),
        "test_a_message_comes_back_as_it_was_sent": "headers are a table there: the same values, not the "
        "same text",
        "test_delayed_messages_are_flushed": "what is delayed comes out when it is due, and not before",
        **dict.fromkeys(
            (
                "test_live_workers_are_listed",
                "test_what_a_worker_tells_of_itself_is_read_by_other_processes",
                "test_each_worker_has_a_presence_of_its_own_which_it_keeps_when_it_registers_again",
                "test_a_presence_that_is_damaged_spoils_nothing",
                "test_a_presence_may_be_large",
            ),
            "RabbitMQ does not tell of workers",
        ),
        "test_queues_say_how_they_stand": "nor of what is delayed or leased",
        "test_sweeping_takes_old_dead_letters": "the server removes them by itself",
        "test_revocations_expire": "the stream keeps them for a while, and nobody sweeps it",
    }

    def __init__(self, directory: Path) -> None:
        self.url = require("rabbitmq")
        prefix = f"test.{hashlib.sha1(str(directory).encode()).hexdigest()[:12]}."
        self.queues = Queues(prefix=prefix, max_priority=9)

    def open(self, **options: Any) -> Broker:
        options.pop("lease_seconds", None)
        options.pop("uptime", None)
        options.pop("revoke_expires", None)
        return PatientBroker(self.url, queues=self.queues, **options)

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return None

    def count(self) -> int:
        link = Link(address_of(self.url), 5.0)
        try:
            return sum(self.queues.look(link, queue) or 0 for queue in "qrabc")
        finally:
            link.close()

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        link = Link(address_of(self.url), 5.0)
        try:
            channel = link.channel()
            for queue in (*"qrabc", DEAD, REVOKED):
                link.call(channel.queue_delete, self.queues.prefix + queue)
        finally:
            link.close()
