"""Disque's commands, as the transcripts in tests/data/disque show them.

Comes from:  ``disque_server.py``; tests that move the clock.
Goes to:     ``disque_node.py``.
Thread:      that of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.disque_node import (
    COMMANDS,
    NIL_ARRAY,
    Blocked,
    Job,
    Node,
    Refusal,
    Session,
    Simple,
    given,
    new_id,
)  # fmt: skip

OK = Simple("OK")
SYNTAX = "ERR syntax error"
NOT_ENOUGH = "NOREPL Not enough reachable nodes for the requested replication level"
LEAVING = "LEAVING This node is leaving the cluster, please connect to a different one"
STATES = ("wait-repl", "active", "queued", "acked")


def execute(node: Node, session: Session, request: list[bytes]) -> Any:
    """The reply; None is nil, and a Blocked means that it comes later."""
    name = request[0].decode("latin-1").lower()
    node.commands[name] += 1
    try:
        if name not in TABLE:
            raise Refusal(f"ERR unknown command '{request[0].decode('latin-1')}'")
        command, least = TABLE[name]
        if len(request) - 1 < least:
            raise Refusal(f"ERR wrong number of arguments for '{name}' command")
        if not session.allowed and name not in ("auth", "quit"):
            raise Refusal("NOAUTH Authentication required.")
        return command(node, session, request[1:])
    except Refusal as refusal:
        return refusal


def _integer(text: bytes, least: int, refusal: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise Refusal(refusal) from None
    if value < least:
        raise Refusal(refusal)
    return value


def _timeout(text: bytes) -> int:
    value = _integer(text, -(2**63), "ERR timeout is not an integer or out of range")
    return _integer(text, 0, "ERR timeout is negative") if value < 0 else value


def _ids(values: list[bytes]) -> list[str]:
    for value in values:
        if len(value) != 40 or value[:2] != b"D-" or value[10:11] != b"-" or value[35:36] != b"-":
            raise Refusal("BADID Invalid Job ID format.")
    return [value.decode("latin-1") for value in values]


def _addjob(node: Node, session: Session, words: list[bytes]) -> Any:
    name, body, timeout, *options = words
    size = 1 + len([other for other in node.cluster.nodes if other.id in node.met])
    found = {"replicate": 0, "delay": 0, "retry": -1, "ttl": 86400, "maxlen": 0}
    limits = {
        "replicate": (1, "ERR REPLICATE must be between 1 and 65535"),
        "delay": (0, "ERR DELAY time must be a non negative number"),
        "retry": (0, "ERR RETRY time must be a non negative number"),
        "ttl": (1, "ERR TTL must be a number > 0"),
        "maxlen": (1, "ERR MAXLEN must be a positive number"),
    }
    while options:
        option = options.pop(0).decode("latin-1").lower()
        if option == "async":
            continue
        if option not in found or not options:
            raise Refusal(SYNTAX)
        found[option] = _integer(options.pop(0), *limits[option])
    _timeout(timeout)
    replicate, delay, retry, ttl, longest = found.values()
    if retry == 0:
        if replicate > 1:
            raise Refusal(
                "ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)"
            )
        replicate = 1
    replicate = replicate or min(3, size)
    if delay >= ttl:
        raise Refusal(
            "ERR The specified DELAY is greater than TTL. Job refused since would never be delivered"
        )
    queue = node.queues.get(name)
    if queue is not None and "in" in queue.pause:
        raise Refusal("PAUSED Queue paused in input, try later")
    if longest and queue is not None and len(queue.jobs) >= longest:
        raise Refusal("MAXLEN Queue is already longer than the specified MAXLEN count")
    elsewhere = replicate if node.leaving else replicate - 1
    others = [other for other in node.others if not other.leaving][:elsewhere]
    if len(others) < elsewhere:
        reason = (
            ", since I'm unable to hold a copy of the message for the following reason: "
            "I'm leaving the cluster"
        )
        raise Refusal(NOT_ENOUGH + (reason if node.leaving else ""))
    retry = min(300, max(1, ttl // 10)) if retry < 0 else retry
    now = node.cluster.clock()
    holders = others if node.leaving else [node, *others]
    names = [holder.id for holder in holders]
    job_id = new_id(node, ttl, retry)
    ctime = node.next_ctime()
    for holder in holders:
        first = holder is holders[0]
        job = Job(
            job_id, name, body, replicate, ctime, now + ttl, delay, retry, ttl,
            now + (delay if first else delay + retry), [holder.id, *(n for n in names if n != holder.id)],
        )  # fmt: skip
        if not first and not retry:
            job.requeue_at = 0
        if first and not delay:
            holder.jobs[job_id] = job
            job.requeue_at = now
            holder.enqueue(job)
        holder.jobs[job_id] = job
        holder._keep(job)
        holder.wait_for(job)
    return Simple(job_id)


def _getjob(node: Node, session: Session, words: list[bytes]) -> Any:
    count, timeout, nohang, counters = 1, 0, False, False
    queues: list[bytes] = []
    words = list(words)
    while words:
        option = words.pop(0).decode("latin-1").lower()
        if option == "nohang":
            nohang = True
        elif option == "withcounters":
            counters = True
        elif option == "timeout" and words:
            timeout = _timeout(words.pop(0))
        elif option == "count" and words:
            count = _integer(words.pop(0), 1, "ERR COUNT must be a number greater than zero")
        elif option == "from":
            queues = list(dict.fromkeys(words))
            break
        else:
            raise Refusal(SYNTAX)
    if not queues:
        raise Refusal(SYNTAX)
    found: list[Job] = []
    looking = True
    while looking and len(found) < count:
        looking = False
        for name in queues:
            if len(found) < count and (job := node.fetch(name)) is not None:
                found.append(job)
                looking = True
    if found:
        return [given(job, counters) for job in found]
    if nohang:
        for name in queues:
            node.import_jobs(name)
        return NIL_ARRAY
    if node.leaving:
        raise Refusal(LEAVING)
    for name in queues:
        node._queue(name)
    deadline = node.cluster.clock() + timeout / 1000 if timeout else 0.0
    session.blocked = Blocked(session, queues, deadline, counters)
    node.blocked.append(session.blocked)
    return session.blocked


def _ackjob(node: Node, session: Session, words: list[bytes]) -> int:
    known = 0
    for job_id in _ids(words):
        job = node.jobs.get(job_id)
        if job is not None and job.state != "acked":
            known += 1
            node.dequeue(job)
            job.state = "acked"
            node._collect(job)
        elif job is None and node.met:
            for other in node.others:
                other.drop(job_id)
    return known


def _fastack(node: Node, session: Session, words: list[bytes]) -> int:
    known = 0
    for job_id in _ids(words):
        known += node.drop(job_id)
        for other in node.others:
            other.drop(job_id)
    return known


def _each(do: Callable[[Node, Job], bool]) -> Callable[[Node, Session, list[bytes]], int]:
    def command(node: Node, session: Session, words: list[bytes]) -> int:
        return sum(do(node, node.jobs[job_id]) for job_id in _ids(words) if job_id in node.jobs)

    return command


def _working(node: Node, session: Session, words: list[bytes]) -> int:
    job = node.jobs.get(_ids(words[:1])[0])
    if job is None:
        raise Refusal("NOJOB Job not known in the context of this node.")
    if node.cluster.clock() - job.ctime / 1e9 > job.ttl / 2:
        raise Refusal(
            "TOOLATE Half of job TTL already elapsed, "
            "you are no longer allowed to postpone the next delivery."
        )
    node.dequeue(job)
    node.postpone(job)
    for other, copy in node.copies(job.id):
        other.dequeue(copy)
        other.postpone(copy)
    return job.retry


def shown(node: Node, job: Job) -> list[Any]:
    now = node.cluster.clock()
    first = job.delay and not job.delivered and job.state == "active"
    awake = job.requeue_at - (0 if first else 0.5) if job.requeue_at else job.expires
    return [
        b"id", job.id, b"queue", job.queue, b"state", job.state, b"repl", job.repl,
        b"ttl", round(job.expires - now), b"ctime", job.ctime, b"delay", job.delay, b"retry", job.retry,
        b"nacks", job.nacks, b"additional-deliveries", job.deliveries,
        b"nodes-delivered", list(job.holders), b"nodes-confirmed", [],
        b"next-requeue-within", round((job.requeue_at - now) * 1000) if job.requeue_at else None,
        b"next-awake-within", round((awake - now) * 1000), b"body", job.body,
    ]  # fmt: skip


def _show(node: Node, session: Session, words: list[bytes]) -> Any:
    job = node.jobs.get(_ids(words[:1])[0])
    return None if job is None else shown(node, job)


def _qlen(node: Node, session: Session, words: list[bytes]) -> int:
    return len(node.queues[words[0]].jobs) if words[0] in node.queues else 0


def _qpeek(node: Node, session: Session, words: list[bytes]) -> list[Any]:
    count = _integer(words[1], -(2**63), "ERR value is not an integer or out of range")
    jobs = node.queues[words[0]].jobs if words[0] in node.queues else []
    places = jobs[:count] if count >= 0 else jobs[::-1][:-count]
    return [given(node.jobs[job_id], False) for _, job_id in places]


def _paused(pause: frozenset[str]) -> str:
    return "all" if len(pause) == 2 else "".join(pause) or "none"


def _qstat(node: Node, session: Session, words: list[bytes]) -> Any:
    queue = node.queues.get(words[0])
    if queue is None:
        return NIL_ARRAY
    now = node.cluster.clock()
    waiting = sum(words[0] in one.queues for one in node.blocked)
    return [
        b"name", words[0], b"len", len(queue.jobs), b"age", int(now - queue.made),
        b"idle", int(now - queue.used), b"blocked", waiting, b"import-from", [], b"import-rate", 0,
        b"jobs-in", queue.jobs_in, b"jobs-out", queue.jobs_out, b"pause", _paused(queue.pause),
    ]  # fmt: skip


def _pause(node: Node, session: Session, words: list[bytes]) -> Simple:
    chosen: frozenset[str] | None = None
    table = {"none": (), "in": ("in",), "out": ("out",), "all": ("in", "out")}
    everywhere = False
    for word in (text.decode("latin-1").lower() for text in words[1:]):
        if word in table:
            chosen = (chosen or frozenset()) | frozenset(table[word])
        elif word == "bcast":
            everywhere = True
        elif word != "state":
            raise Refusal(SYNTAX)
    for one in (node, *(node.others if everywhere else ())):
        if chosen is not None:
            one._queue(words[0]).pause = chosen
    queue = node.queues.get(words[0])
    return Simple(_paused(queue.pause if queue else frozenset()))


def _scan(words: list[bytes], options: dict[str, Any], flags: tuple[str, ...] = ("busyloop",)) -> int:
    """Fill *options* in; return the cursor."""
    cursor = 0
    words = list(words)
    while words:
        word = words.pop(0)
        name = word.decode("latin-1").lower()
        if name in options and words:
            options[name] = words.pop(0)
        elif name in flags:
            options[name] = True
        elif word.isdigit():
            cursor = int(word)
        else:
            raise Refusal(SYNTAX)
    return cursor


def _page(found: list[Any], cursor: int, options: dict[str, Any]) -> list[Any]:
    count = len(found) if options.get("busyloop") else int(options["count"] or 100)
    end = cursor + count
    return [str(end if end < len(found) else 0), found[cursor:end]]


def _qscan(node: Node, session: Session, words: list[bytes]) -> list[Any]:
    options: dict[str, Any] = dict.fromkeys(("count", "minlen", "maxlen", "importrate"))
    cursor = _scan(words, options)
    least, most = int(options["minlen"] or 0), int(options["maxlen"] or 2**63)
    found = [name for name, queue in node.queues.items() if least <= len(queue.jobs) <= most]
    return _page(found, cursor, options)


def _jscan(node: Node, session: Session, words: list[bytes]) -> list[Any]:
    options: dict[str, Any] = dict.fromkeys(("count", "queue", "reply"))
    wanted = set()
    rest = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word.lower() == b"state" and words:
            state = words.pop(0).decode("latin-1").lower()
            if state not in STATES:
                raise Refusal("ERR Invalid job state name")
            wanted.add(state)
        else:
            rest.append(word)
    cursor = _scan(rest, options)
    found = [
        job
        for job in node.jobs.values()
        if options["queue"] in (None, job.queue) and (not wanted or job.state in wanted)
    ]
    whole = (options["reply"] or b"").lower() == b"all"
    return _page([shown(node, job) if whole else Simple(job.id) for job in found], cursor, options)


def _hello(node: Node, session: Session, words: list[bytes]) -> list[Any]:
    nodes = [node, *(other for other in node.cluster.nodes if other.id in node.met)]
    return [
        1,
        node.id,
        *(
            [one.id, "127.0.0.1" if node.met else "", str(one.port), "100" if one.leaving else "1"]
            for one in nodes
        ),
    ]


def _auth(node: Node, session: Session, words: list[bytes]) -> Simple:
    if node.password is None:
        raise Refusal("ERR Client sent AUTH, but no password is set")
    session.allowed = words[0].decode() == node.password
    if not session.allowed:
        raise Refusal("ERR invalid password")
    return OK


def meet(nodes: list[Node]) -> None:
    """Make a cluster of *nodes*."""
    for node in nodes:
        node.met |= {other.id for other in nodes} - {node.id}


def _cluster(node: Node, session: Session, words: list[bytes]) -> Any:
    known = [one for one in node.cluster.nodes if one.id in node.met]
    match words[0].upper(), words[1:]:
        case b"MEET", [_, port, *_]:
            met = [one for one in node.cluster.nodes if one.port == int(port)]
            everybody = {*met, node, *known}
            meet(list(everybody))
            return OK
        case b"LEAVING", []:
            return Simple("yes" if node.leaving else "no")
        case b"LEAVING", [word]:
            node.leaving = word == b"yes"
            return OK
        case b"NODES", []:
            lines = [f"{node.id} {'127.0.0.1' if known else ''}:{node.port} myself 0 0 connected"]
            lines += [f"{one.id} 127.0.0.1:{one.port} noflags 0 0 connected" for one in known]
            return "".join(line + "\n" for line in lines)
        case b"INFO", []:
            values = {
                "state": "ok", "known_nodes": 1 + len(known), "reachable_nodes": len(node.others),
                "size": 1 + len(known), "stats_messages_sent": 0, "stats_messages_received": 0,
            }  # fmt: skip
            return "".join(f"cluster_{name}:{value}\r\n" for name, value in values.items())
        case b"FORGET", [name]:
            if name.decode() not in node.met:
                raise Refusal(f"ERR Unknown node {name.decode()}")
            node.met.discard(name.decode())
            return OK
        case b"RESET", _:
            node.met.clear()
            return OK
    raise Refusal(SYNTAX)


def _info(node: Node, session: Session, words: list[bytes]) -> str:
    sections = {
        "Server": {"disque_version": "1.0-rc1", "tcp_port": node.port, "executable": "stand-in"},
        "Queues": {"registered_queues": len(node.queues)},
        "Jobs": {"registered_jobs": len(node.jobs)},
        "Persistence": {"loading": 0, "aof_enabled": int(node.aof is not None), "aof_state": "on"},
    }
    wanted = [text.decode().capitalize() for text in words] or list(sections)
    return "\r\n".join(
        f"# {name}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in sections[name].items())
        for name in wanted
        if name in sections
    )


def _client(node: Node, session: Session, words: list[bytes]) -> Any:
    match words[0].upper(), words[1:]:
        case b"SETNAME", [name]:
            session.name = name
            return OK
        case b"GETNAME", []:
            return session.name or None
        case b"LIST", []:
            return f"id=1 name={session.name.decode()} cmd=client\n"
    raise Refusal(SYNTAX)


def _time(node: Node, session: Session, words: list[bytes]) -> list[Any]:
    now = node.cluster.clock()
    return [str(int(now)), str(int(now % 1 * 1e6))]


def _debug(node: Node, session: Session, words: list[bytes]) -> Simple:
    if words[0].upper() != b"FLUSHALL":
        raise Refusal(SYNTAX)
    for job_id in list(node.jobs):
        node.drop(job_id)
    node.queues.clear()
    return OK


def _shutdown(node: Node, session: Session, words: list[bytes]) -> Simple:
    raise Refusal(SYNTAX)


TABLE: dict[str, tuple[Callable[[Node, Session, list[bytes]], Any], int]] = {
    "ping": (lambda *_: Simple("PONG"), 0),
    "quit": (lambda *_: OK, 0),
    "auth": (_auth, 1),
    "hello": (_hello, 0),
    "addjob": (_addjob, 3),
    "getjob": (_getjob, 1),
    "ackjob": (_ackjob, 0),
    "fastack": (_fastack, 0),
    "nack": (_each(lambda node, job: node.enqueue(job, nack=True)), 0),
    "enqueue": (_each(Node.enqueue), 0),
    "dequeue": (_each(Node.dequeue), 0),
    "deljob": (_each(lambda node, job: node.drop(job.id)), 0),
    "working": (_working, 1),
    "show": (_show, 1),
    "qlen": (_qlen, 1),
    "qpeek": (_qpeek, 2),
    "qstat": (_qstat, 1),
    "qscan": (_qscan, 0),
    "jscan": (_jscan, 0),
    "pause": (_pause, 2),
    "cluster": (_cluster, 1),
    "info": (_info, 0),
    "config": (lambda node, *_: ["port", str(node.port)], 1),
    "client": (_client, 1),
    "command": (lambda *_: COMMANDS, 0),
    "time": (_time, 0),
    "debug": (_debug, 1),
    "shutdown": (_shutdown, 0),
}
"""Each command, and the number of arguments it needs."""
