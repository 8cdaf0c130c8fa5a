"""Where the broker in a spool directory is tested.

Comes from:  lease_places.py.
Goes to:     a directory of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qworker.spooler.broker import SpoolBroker
from qworker.spooler.writing import Sync
from qworker.transports.lease import Broker


class SpoolPlace:
    """As the suite of leases asks for a place. cannot: the tests that ask for what a spool directory does not
    have, and why."""

    cannot = {
        **dict.fromkeys(
            (
                "test_an_ack_removes_the_message_and_stores_its_result",
                "test_what_is_dead_lettered_is_a_dead_letter",
                "test_a_result_may_be_stored_by_itself",
                "test_a_settled_result_never_goes_back",
                "test_all_kinds_of_settlement_go_in_one_step",
                "test_what_is_not_ours_is_named_and_left_alone",
                "test_an_old_generation_settles_nothing",
                "test_a_retried_dead_letter_leaves_no_failure_behind",
                "test_sweeping_takes_expired_results",
                "test_a_sweep_of_very_much_is_done_in_portions",
            ),
            "results are kept in a store of their own",
        ),
        **dict.fromkeys(
            (
                "test_near_messages_are_taken_ahead_within_the_horizon",
                "test_near_messages_have_a_limit_of_their_own",
            ),
            "a file is claimed when it is due, and not before",
        ),
        **dict.fromkeys(
            (
                "test_a_silent_holder_is_taken_for_dead",
                "test_leases_run_out_in_real_time_too",
                "test_a_stopped_process_loses_its_lease",
            ),
            "a lock lasts as long as its process, however silent that is",
        ),
        **dict.fromkeys(
            (
                "test_what_a_killed_process_held_is_back_at_once",
                "test_marks_of_messages_that_were_settled_count_nothing",
                "test_the_dead_are_reclaimed_once",
                "test_a_child_neither_holds_nor_keeps_its_parents_leases",
            ),
            "the kernel gives back what a dead process held, and tells nobody: "
            "tests/acceptance/test_spool_broker.py",
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
            "revocations do not spread",
        ),
        **dict.fromkeys(
            (
                "test_live_workers_are_listed",
                "test_what_a_worker_tells_of_itself_is_read_by_other_processes",
                "test_each_worker_has_a_presence_of_its_own_which_it_keeps_when_it_registers_again",
                "test_a_presence_that_is_damaged_spoils_nothing",
                "test_a_presence_may_be_large",
            ),
            "workers are not listed",
        ),
        "test_dead_letters_from_elsewhere": "dead letters are not taken from elsewhere",
    }

    def __init__(self, directory: Path) -> None:
        self.path = directory / "spool"

    def open(self, **options: Any) -> Broker:
        clock = {name: value for name, value in options.items() if name == "clock"}
        return SpoolBroker(str(self.path), sync=Sync.NOTHING, **clock)

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        raise AssertionError("results have a store of their own")

    def count(self) -> int:
        queues = self.path / ".qw-queues"
        return sum(
            1
            for path in queues.rglob("uwsgi_spoolfile_on_*")
            if path.is_file() and path.parent.name != ".qw-dead"
        )

    def lose(self) -> None:
        shutil.rmtree(self.path)
