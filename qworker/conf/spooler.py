"""Settings of the spooler: its directories, its processes, and what may come from sockets.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them; the spooler makes its options of them.
Thread:      built once at import, never changed. Names are uWSGI's, wherever uWSGI has one.
"""

from qworker.conf import kinds
from qworker.conf.setting import declare


class SpoolerSettings:
    """Names and types; the declarations are in `settings.SETTINGS`."""

    spooler: tuple[str, ...] = declare(
        kinds.PATHS,
        (),
        "Spool directories whose jobs are run. One that is missing is made, in a directory that is there.",
    )
    spooler_external: tuple[str, ...] = declare(
        kinds.PATHS, (), "Spool directories that jobs are written to, and that others work off."
    )
    spooler_default: str | None = declare(
        kinds.PATH,
        None,
        "The one of these directories that a job goes into which names none. None: the first of `spooler`, "
        "else of `spooler_external`.",
    )
    spooler_ordered: bool = declare(
        kinds.BOOLEAN,
        False,
        "Run jobs in natural order of their names, and those in directories that are numbers, the "
        "priorities, where these sort. Without it priorities are not looked into.",
    )
    spooler_chdir: str | None = declare(
        kinds.PATH, None, "The directory in which jobs run; None: the one in which the job's file lies."
    )
    spooler_processes: int | None = declare(
        kinds.INTEGER,
        None,
        "Processes that run jobs of the spool directories, all together; None or 0: `worker_concurrency`.",
        minimum=0,
        maximum=1024,
    )
    spooler_quiet: bool = declare(kinds.BOOLEAN, False, "Log no line for each job that is begun and done.")
    spooler_max_tasks: int | None = declare(
        kinds.INTEGER, None, "A process is replaced after this many jobs; None or 0: never.", minimum=0
    )
    spooler_signal_as_task: bool = declare(
        kinds.BOOLEAN, False, "A signal that was handled counts as a job for `spooler_max_tasks`."
    )
    spooler_harakiri: float | None = declare(
        kinds.DURATION,
        None,
        "A process whose job takes longer is killed, and the job is tried again; None or 0: it may take as "
        "long as it likes.",
        minimum=0,
    )
    spooler_frequency: float = declare(
        kinds.DURATION,
        30.0,
        "How often a directory is read through, beside what the system tells of it; 0: the default.",
        minimum=0,
    )
    spooler_python_import: tuple[str, ...] = declare(
        kinds.NAMES,
        (),
        "Modules that each process of the spooler imports at its start; what has a slash or ends in `.py` is "
        "the path of a file.",
    )
    spooler_max_attempts: int | None = declare(
        kinds.INTEGER,
        20,
        "A job that was begun so often without success is set aside; None or 0: it is tried for ever.",
        minimum=0,
        nullable=True,
        none=0,
    )
    spooler_backoff: float = declare(
        kinds.DURATION,
        1.0,
        "How long a job waits for its second attempt; the wait doubles with each one.",
        minimum=0,
    )
    spooler_backoff_max: float = declare(kinds.DURATION, 600.0, "…but is never longer than this.", minimum=0)
    spooler_allow_pickle: bool = declare(
        kinds.BOOLEAN,
        False,
        "Unpickle the arguments of jobs that uWSGI's decorators wrote; who can write to the directory can "
        "then run any code.",
    )
    spooler_bridge: str | None = declare(
        kinds.FUNCTION,
        None,
        "`module:function` that gets each job and returns a task signature, which is sent instead of running "
        "the job here.",
    )
    spooler_results: bool = declare(
        kinds.BOOLEAN,
        False,
        "Store what jobs return, under the names of their files; jobs are then run one by one, which is "
        "slower.",
    )
    spooler_socket: tuple[str, ...] = declare(
        kinds.SPOOL_ADDRESSES,
        (),
        "Where packets with jobs are taken: `host:port`, the path of a UNIX socket, or `@name` for an "
        "abstract one.",
    )
    spooler_socket_key: tuple[str, ...] | None = declare(
        kinds.SECRETS,
        None,
        "Key with which packets of other machines have to be signed; a list for rotation: the first signs, "
        "all verify.",
    )
    spooler_socket_allow: tuple[str, ...] = declare(
        kinds.NETWORKS,
        (),
        "Addresses and networks (`10.1.2.0/24`) that packets are taken from, beside this machine.",
    )
    spooler_socket_timeout: float = declare(
        kinds.DURATION, 4.0, "How long a peer may take to send a packet.", minimum=0.01, maximum=3600
    )
    spooler_buffer_size: int = declare(
        kinds.BYTES,
        65_535,
        "The longest packet that is taken from a socket, without its body.",
        minimum=4,
        maximum=65_535,
    )
    spooler_body_max: int = declare(
        kinds.BYTES,
        0,
        "The longest body that is taken from a socket; 0: none, as with uWSGI.",
        minimum=0,
        maximum=1_000_000_000,
    )
