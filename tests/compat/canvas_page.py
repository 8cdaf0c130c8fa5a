"""Generates the page about Celery's canvas from the cases that both libraries run.

Comes from:  canvas_cases, whose cases are its first table; the second names a test for each behaviour.
Goes to:     docs/reference/celery-canvas.md: ``python -m tests.compat.canvas_page > docs/reference/…``.
Thread:      any.
"""

from __future__ import annotations

import ast
from pathlib import Path

CASES = Path(__file__).with_name("canvas_cases.py")

BEHAVIOURS: list[tuple[str, list[tuple[str, str, str]]]] = [
    (
        "Values, order, errors",
        [
            (
                "nested workflows of any depth: values, how often each call runs, and in which order",
                "as Celery",
                "integration/test_workflow_oracle.py::test_random_workflows_match_the_oracle",
            ),
            (
                "the same with `task_always_eager`",
                "as Celery",
                "integration/test_workflow_oracle.py::test_random_eager_workflows_match_the_oracle",
            ),
            (
                "a step fails: nothing after it runs, and its errbacks are called",
                "as Celery",
                "compat/test_celery_workflows.py::test_failed_step_ends_the_chain_on_both",
            ),
            (
                "a step is revoked, expires, or is killed for good",
                "differs: the calls after it fail too; Celery leaves them `PENDING`",
                "integration/test_long_chains.py::test_revoked_or_expired_step_ends_the_chain",
            ),
            (
                "`chain(group([one]))`, a chain of nothing but a group of one, piped to `more`",
                "differs: after a call `more` gets the value, after a group a list of it, but the value if "
                "`more` is a group or a chain that begins with a group or chord; with Celery a list after a "
                "call, and after a group the value if `more` is a group or any chain",
                "compat/test_celery_guide.py::test_chain_of_a_single_group_of_one",
            ),
            (
                "the result of `group([a \\| group(b, c)])`, a group of only a chain that ends in a group",
                "differs: `[[b, c]]`, as for a group of more members; with Celery `[b, c]`",
                "compat/test_celery_guide.py::test_result_of_a_group_of_one_chain_that_ends_in_a_group",
            ),
            (
                "a member of a header fails: the body is a `ChordError`, and its errbacks are called",
                "as Celery",
                "compat/test_celery_workflows.py::test_failed_member_fails_the_body_on_the_other_worker_once",
            ),
            (
                "a member of a header is revoked, expires, is rejected, or is of an unknown task",
                "differs: the body fails; with Celery it waits forever for a member that is rejected",
                "integration/test_joiner.py::test_unsuccessful_member_fails_the_body_and_errback_runs_once",
            ),
            (
                "errbacks of a failed body: `(task_id)`, `(request, exc, traceback)`, workflows",
                "differs: in Celery's format an errback with three arguments is a separate call, and "
                "gets them from qworker's workers only",
                "integration/test_workflows.py::test_errbacks_of_a_body_are_called_for_a_failed_header",
            ),
            (
                "a body that is a group or a chord, when its header fails",
                "differs: the errbacks of all calls that would have run first in it are called, each once, "
                "and all its results are failures; those of a group with the member's error, as in Celery",
                "integration/test_workflow_oracle.py::test_random_workflows_match_the_oracle",
            ),
            (
                "a member that is retried is counted once",
                "as Celery",
                "compat/test_celery_workflows.py::test_workflow_runs_on_both",
            ),
            (
                "a member whose result is ignored",
                "refused: at the call, also when the chord comes later in the workflow",
                "integration/test_workflows.py::test_chord_with_ignored_results_is_refused",
            ),
            (
                "`group.apply_async(link=…)` and `link_error=`",
                "as Celery: TypeError",
                "unit/test_canvas.py::test_link_on_a_group_is_refused",
            ),
            (
                "`.set(link=…)` and `.set(link_error=…)` on a group or chord, at any position",
                "differs: they are called in addition to those of a group's members; in Celery they "
                "replace these, and those of a group in a group are lost",
                "integration/test_workflow_links.py::test_callbacks_and_errbacks_of_workflows_are_called",
            ),
            (
                "an errback of a chord in whose header a chord fails",
                "as Celery: called once. The outer chord fails, too; in Celery it waits forever",
                "integration/test_workflow_links.py::"
                "test_errback_of_a_chord_with_a_nested_chord_is_called_once",
            ),
            (
                "a chord without a body",
                "refused",
                "unit/test_canvas.py::test_chord_without_a_body_is_refused",
            ),
            (
                "an empty chain and an empty group are called",
                "as Celery",
                "unit/test_canvas.py::test_empty_group_and_chain_send_nothing",
            ),
        ],
    ),
    (
        "Ids and results",
        [
            (
                "`root_id` and `parent_id` of every call",
                "as Celery",
                "compat/test_celery_workflows.py::test_root_and_parent_ids_are_kept_across_both",
            ),
            (
                "`freeze()`, and ids that are settled before",
                "as Celery",
                "unit/test_canvas.py::test_frozen_workflow_keeps_its_ids",
            ),
            (
                "a call with a settled id, or with a frozen workflow in its links, that is made again",
                "as Celery",
                "integration/test_called_again.py::test_repeated_call_runs_again",
            ),
            (
                "a workflow that Celery's client has frozen and calls again",
                "as Celery",
                "compat/test_frozen_by_celery.py::test_each_call_of_a_frozen_workflow_runs_all_of_it",
            ),
            (
                "the same while the first call runs",
                "differs: all of it runs twice. In Celery's format both have the same keys: a body runs once",
                "integration/test_called_again.py::test_call_made_twice_at_once_runs_twice",
            ),
            (
                "`result.parent` of a chain, a group and a chord",
                "as Celery",
                "integration/test_workflows.py::test_chord_passes_the_list_to_its_body",
            ),
            (
                "`result.parent` with `task_always_eager`",
                "as Celery",
                "unit/test_canvas.py::test_eager_results_have_parents",
            ),
            (
                "`result.children` of a task that calls a group",
                "as Celery",
                "integration/test_workflows.py::test_group_called_by_a_task_is_its_child",
            ),
            (
                "a group in a group: its result",
                "as Celery",
                "compat/test_celery_groups.py::test_nested_group_has_a_list_as_its_value",
            ),
            (
                "the order of its values, in a chain or a chord",
                "differs: as written. Celery's client reverses those of the inner group",
                "compat/test_celery_guide.py::test_order_of_a_group_in_a_group",
            ),
            (
                "`GroupResult.save()` and `restore()`",
                "as Celery",
                "compat/test_celery_groups.py::test_saved_groups_are_restored_by_the_other_library",
            ),
        ],
    ),
    (
        "Inside a task",
        [
            (
                "`self.replace(…)` by a call, a chain, a group, a chord",
                "as Celery",
                "compat/test_replacement.py::test_messages_of_a_replacement_equal_celerys",
            ),
            (
                "`self.replace(…)` in a header and in a body",
                "as Celery",
                "integration/test_replacement.py::test_replacement_in_the_header_and_body_of_a_chord",
            ),
            (
                "errbacks of a task's replacement",
                "as Celery",
                "integration/test_replacement.py::test_failed_replacement_calls_errbacks_and_fails_its_chord",
            ),
            (
                "`self.add_to_chord(…)` outside of a chord",
                "as Celery: an error",
                "integration/test_replacement.py::test_add_to_chord_outside_of_a_chord_raises",
            ),
        ],
    ),
    (
        "Routing of mappings",
        [
            (
                "`task.map`, `task.starmap`: routed as the task that they call",
                "as Celery",
                "compat/test_canvas_cases.py::test_mapping_is_routed_like_its_task",
            ),
            (
                "the same in a group or a chain, and `task.chunks`",
                "differs: routed as the task, too; Celery goes by the name `celery.starmap` there",
                "compat/test_canvas_cases.py::test_mapping_in_a_workflow_is_routed_like_its_task",
            ),
        ],
    ),
    (
        "Celery's and qworker's workers together",
        [
            (
                "header on Celery's workers, body on qworker's, and the reverse; chains that alternate",
                "as Celery",
                "compat/test_celery_workflows.py::test_workflow_runs_on_both",
            ),
            (
                "either worker starts when the other has done its part",
                "as Celery",
                "compat/test_celery_workflows.py::test_workers_started_one_after_the_other",
            ),
            (
                "messages of Celery's clients for each case above, run by qworker's workers alone",
                "as Celery",
                "integration/test_recorded_canvas.py::test_recorded_workflow_has_celerys_value",
            ),
            (
                "one chord counted by both: redelivered members, any order",
                "as Celery",
                "compat/test_celery_chords.py::test_chord_counted_by_both_is_finished_once",
            ),
        ],
    ),
]


def page() -> str:
    """The whole page."""
    lines = [
        "# Celery's canvas, case by case\n",
        "<!-- Made by `python -m tests.compat.canvas_page` from the tests. -->\n",
        "Each case below is built by Celery 5.7 and by qworker with the same code. The tests compare the "
        "values, the types of the resulting signatures, and the messages in Celery's format "
        "(`compat/test_canvas_cases.py`).\n",
        "**as Celery**: the same. **differs**: works, with the difference in the row. **refused**: an error "
        "says what to do.\n",
        "## Nested signatures\n",
        "| case | code | here |",
        "|---|---|---|",
    ]
    tree = ast.parse(CASES.read_text(encoding="utf-8"))
    tables = {
        target.id: node.value
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    different = ast.literal_eval(tables["DIFFERENT"])
    for name in ("CASES", "CALLED"):
        table = tables[name]
        assert isinstance(table, ast.Dict)
        for key, value in zip(table.keys, table.values, strict=True):
            assert isinstance(key, ast.Constant)
            given = ""
            if isinstance(value, ast.Tuple):
                value, arguments = value.elts
                given = f", called with {ast.unparse(arguments)}"
            assert isinstance(value, ast.Lambda)
            code = ast.unparse(value.body).replace("n.", "").replace("|", "\\|")
            verdict = f"differs: {different[key.value]}" if key.value in different else "as Celery"
            lines.append(f"| {str(key.value).replace('|', chr(92) + '|')}{given} | `{code}` | {verdict} |")
    for heading, rows in BEHAVIOURS:
        lines += [f"\n## {heading}\n", "| behaviour | here | test |", "|---|---|---|"]
        lines += [f"| {what} | {verdict} | `{test}` |" for what, verdict, test in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
