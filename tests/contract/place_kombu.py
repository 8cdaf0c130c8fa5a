"""The brokers that are spoken to through kombu, as places: kombu's memory.

Comes from:  lease_places; test_settlement_fuzz.py.
Goes to:     kombu in this process.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from qworker.transports.kombu.broker import KombuBroker, kombu_broker
from qworker.transports.kombu.server import DEAD


class KombuPlace:
    """A queue of its own: kombu keeps what is in memory for the whole process."""

    def __init__(self) -> None:
        self.queue = f"q{uuid.uuid4().hex[:8]}"
        self.opened: list[KombuBroker] = []

    def open(self, **options: Any) -> KombuBroker:
        store = kombu_broker("memory://", **options)
        store.admin.purge(DEAD)
        self.opened.append(store)
        return store

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return None

    def clear(self) -> None:
        for store in self.opened:
            for name in (self.queue, DEAD):
                store.admin.purge(name)
            store.close()


CANNOT = {
    **dict.fromkeys(
        (
            "test_near_messages_are_taken_ahead_within_the_horizon",
            "test_near_messages_have_a_limit_of_their_own",
            "test_next_due_is_the_earliest_of_the_queues",
            "test_a_delayed_message_is_never_early",
            "test_a_release_may_be_for_later",
            "test_delayed_messages_are_flushed",
        ),
        "ETA: what is delayed is held by a worker, and only it knows when it is due",
    ),
    **dict.fromkeys(
        (
            "test_a_result_may_be_stored_by_itself",
            "test_a_settled_result_never_goes_back",
            "test_all_kinds_of_settlement_go_in_one_step",
            "test_what_is_not_ours_is_named_and_left_alone",
            "test_an_old_generation_settles_nothing",
            "test_an_ack_removes_the_message_and_stores_its_result",
            "test_a_retried_dead_letter_leaves_no_failure_behind",
            "test_sweeping_takes_expired_results",
        ),
        "RESULTS: they are kept elsewhere",
    ),
    **dict.fromkeys(
        (
            "test_revocations_are_heard_once_by_all",
            "test_an_order_to_revoke_may_carry_its_signature",
            "test_revocations_expire",
            "test_a_revocation_wakes_a_worker",
            "test_a_revocation_among_messages_is_heard_at_the_next_look",
            "test_nothing_that_was_numbered_before_a_loss_comes_again",
        ),
        "FANOUT: workers hear of no revocations",
    ),
    **dict.fromkeys(
        (
            "test_a_silent_holder_is_taken_for_dead",
            "test_leases_run_out_in_real_time_too",
            "test_marks_of_messages_that_were_settled_count_nothing",
        ),
        "DELIVERY_COUNT: a lease is the server's, and so is what it knows of the dead",
    ),
    **dict.fromkeys(
        (
            "test_sweeping_keeps_those_that_died_last",
            "test_the_dead_letters_of_one_queue_do_not_evict_those_of_another",
            "test_a_sweep_of_very_much_is_done_in_portions",
            "test_sweeping_takes_old_dead_letters",
            "test_dead_letters_from_elsewhere",
        ),
        "dead letters are kept until somebody looks after them, and come from here alone",
    ),
    **dict.fromkeys(
        (
            "test_what_a_worker_tells_of_itself_is_read_by_other_processes",
            "test_each_worker_has_a_presence_of_its_own_which_it_keeps_when_it_registers_again",
            "test_a_presence_that_is_damaged_spoils_nothing",
            "test_a_presence_may_be_large",
        ),
        "WORKERS: nobody is told of them",
    ),
    "test_queues_say_how_they_stand": "COUNTS",
    "test_order_holds_over_several_leases_and_pushes": "PRIORITY: there are a few steps, or none",
    "test_a_message_comes_back_as_it_was_sent": "headers are written anew, with the same values",
    "test_what_is_dead_lettered_is_a_dead_letter": "the same",
    "test_no_queue_waits_for_another_to_run_dry": "only queues are read that were registered",
}


class KombuLeasePlace(KombuPlace):
    """As the suite of leases asks for a place. cannot: tests that ask for what kombu's transports do not
    have."""

    cannot = frozenset(CANNOT)

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.client = self.open()

    def open(self, **options: Any) -> KombuBroker:
        given = {name: value for name, value in options.items() if name == "clock"}
        store = kombu_broker("memory://", poll=0.02, **given)
        self.opened.append(store)
        return store

    def count(self) -> int:
        held = sum(len(store.consumer._holdings.everything()) for store in self.opened)
        return held + sum(info.ready for info in self.client.admin.depths(["q", "r"]))

    def lose(self) -> None:
        raise NotImplementedError("the memory of this process is not lost")

    def clear(self) -> None:
        names = {DEAD}.union(*(store.sender.known for store in self.opened), ("q", "r"))
        for store in self.opened:
            store.close()
        with closing(self.open()) as store:
            for name in names:
                store.admin.purge(name)
