"""The names that projects import from Django-Q and from django-q2, in modules of the same names.

The lists are those of django-q2 1.11, without names imported from other modules. They are copied here, so
that neither package needs to be installed.
"""

from __future__ import annotations

from importlib import import_module

import pytest

MANUAL = {
    "tasks": "Async Chain Iter async_chain async_iter count_group delete_cached delete_group fetch "
    "fetch_group queue_size result result_group schedule",
    "models": "Task Success Failure Schedule OrmQ",
    "brokers": "Broker get_broker",
    "cluster": "Cluster",
    "monitor": "Stat info monitor",
    "signals": "pre_enqueue pre_execute",
    "humanhash": "uuid humanize",
    "signing": "SignedPackage",
    "conf": "Conf",
    "status": "Stat",
    "brokers.disque": "Disque",
    "brokers.ironmq": "IronMQBroker",
    "brokers.mongo": "Mongo",
}
DJANGO_Q2 = {
    "tasks": "AsyncTask Chain Iter async_chain async_iter async_task count_group count_group_cached "
    "delete_cached delete_group delete_group_cached fetch fetch_cached fetch_group fetch_group_cached "
    "queue_size result result_cached result_group result_group_cached schedule Schedule Task get_broker",
    "models": "Failure FailureManager OrmQ Schedule Success SuccessManager Task validate_cron validate_kwarg",
    "brokers": "Broker get_broker",
    "brokers.orm": "ORM",
    "brokers.redis_broker": "Redis",
    "brokers.aws_sqs": "Sqs",
    "cluster": "Cluster Broker Stat Status get_broker humanize",
    "monitor": "monitor",
    "signals": "post_execute post_execute_in_worker post_spawn pre_enqueue pre_execute",
    "signing": "PickleSerializer SignedPackage BadSignature",
    "humanhash": "DEFAULT_HASHER DEFAULT_WORDLIST HumanHasher humanize uuid",
    "conf": "Conf logger",
    "status": "Stat Status Broker get_broker",
}
MEMBERS = {
    "tasks.AsyncTask": "broker cached fetch fetch_group group hook result result_group run save sync",
    "tasks.Iter": "append fetch length result run",
    "tasks.Chain": "append current fetch length result run",
    "models.Task": "args attempt_count cluster delete_group func get_group_count get_result get_result_group "
    "get_task get_task_group group group_count group_delete group_result hook id kwargs name objects result "
    "started stopped success time_taken",
    "models.Schedule": "BIMONTHLY BIWEEKLY CRON DAILY HOURLY MINUTES MONTHLY ONCE QUARTERLY TYPE WEEKLY "
    "YEARLY args calculate_next_run cluster cron func hook id intended_date_kwarg kwargs last_run minutes "
    "name next_run objects repeats save schedule_type success task",
    "models.OrmQ": "args func group id key kwargs lock name objects payload q_options task task_id",
    "brokers.Broker": "acknowledge delete delete_queue dequeue enqueue fail get_cache get_connection "
    "get_stat get_stats info lock_size ping purge_queue queue_size set_stat",
    "cluster.Cluster": "has_stopped is_running is_starting is_stopping name start stat stop",
    "status.Stat": "empty_queues get get_all uptime",
    "conf.Conf": "ACK_FAILURES BROKER_CLASS BULK CACHE CACHED CATCH_UP CLUSTER_NAME COMPRESSED CPU_AFFINITY "
    "DAEMONIZE_WORKERS DJANGO_REDIS ERROR_REPORTER GUARD_CYCLE IDLE IRON_MQ LABEL LOG_LEVEL MAX_ATTEMPTS "
    "MAX_RSS MONGO MONGO_DB ORM POLL PREFIX QSIZE QUEUE_LIMIT Q_STAT RECYCLE REDIS RETRY SAVE_LIMIT "
    "SAVE_LIMIT_PER SCHEDULER SECRET_KEY SIGNAL_NAMES SQS STARTING STOPPED STOPPING SYNC TESTING TIMEOUT "
    "TIME_ZONE WORKERS WORKING conf",
    "humanhash.HumanHasher": "compress humanize uuid",
    "signing.SignedPackage": "dumps loads",
    "signing.PickleSerializer": "dumps loads",
}
PARTS_OF_ANOTHER_ENGINE = {
    "cluster": "Sentinel get_mp_context set_cpu_affinity pusher scheduler worker",
    "monitor": "save_cached save_task",
    "signals": "call_hook",
    "conf": "ErrorReporter get_ppid",
}


def words(names: dict[str, str]) -> list[tuple[str, str]]:
    return [(where, name) for where, text in names.items() for name in text.split()]


@pytest.mark.parametrize(("module", "name"), words(MANUAL))
def test_names_of_the_manual(module: str, name: str) -> None:
    assert hasattr(import_module(f"qworker.django.{module}"), name)


@pytest.mark.parametrize(("module", "name"), words(DJANGO_Q2))
def test_names_of_django_q2(module: str, name: str) -> None:
    assert hasattr(import_module(f"qworker.django.{module}"), name)


@pytest.mark.parametrize(("owner", "name"), words(MEMBERS))
def test_members_of_classes(owner: str, name: str) -> None:
    module, _, found = owner.rpartition(".")
    assert hasattr(getattr(import_module(f"qworker.django.{module}"), found), name)


@pytest.mark.parametrize(("module", "name"), words(PARTS_OF_ANOTHER_ENGINE))
def test_engine_internals_have_no_counterpart(module: str, name: str) -> None:
    assert not hasattr(import_module(f"qworker.django.{module}"), name)
