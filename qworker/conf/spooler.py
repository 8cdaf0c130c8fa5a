"""Settings of the spooler.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them; the spooler derives its options from them.
Thread:      built once at import, immutable.

Names are uWSGI's if uWSGI has the option.
"""

from qworker.conf import kinds
from qworker.conf.setting import declare


class SpoolerSettings:
    """Declarations: each setting with its type, default and text. `settings.SETTINGS` has all by name."""

    spooler: tuple[str, ...] = declare(
        kinds.PATHS,
        (),
        "Spool directories whose jobs are run. A missing one is created, if its parent exists.",
    )
    spooler_external: tuple[str, ...] = declare(
        kinds.PATHS, (), "Spool directories to which jobs are written, for other spoolers."
    )
    spooler_default: str | None = declare(
        kinds.PATH,
        None,
        "The default directory for jobs. None: the first of `spooler`, else of `spooler_external`.",
    )
    spooler_ordered: bool = declare(
        kinds.BOOLEAN,
        False,
        "Run jobs in the natural order of their names, and those in numbered subdirectories (priorities) in "
        "the order of the numbers. False: priorities are ignored.",
    )
    spooler_chdir: str | None = declare(
        kinds.PATH, None, "The directory in which jobs run; None: the one that contains the job's file."
    )
    spooler_processes: int | None = declare(
        kinds.INTEGER,
        None,
        "Total number of processes that run jobs of the spool directories; None or 0: `worker_concurrency`.",
        minimum=0,
        maximum=1024,
    )
    spooler_quiet: bool = declare(kinds.BOOLEAN, False, "Do not log the start and end of each job.")
    spooler_max_tasks: int | None = declare(
        kinds.INTEGER, None, "A process is replaced after this many jobs; None or 0: never.", minimum=0
    )
    spooler_signal_as_task: bool = declare(
        kinds.BOOLEAN, False, "A handled signal counts as a job for `spooler_max_tasks`."
    )
    spooler_harakiri: float | None = declare(
        kinds.DURATION,
        None,
        "A process whose job takes longer is killed, and the job is tried again; None or 0: no limit.",
        minimum=0,
    )
    spooler_frequency: float = declare(
        kinds.DURATION,
        30.0,
        "How often a directory is scanned, in addition to notifications from the system; 0: the default.",
        minimum=0,
    )
    spooler_python_import: tuple[str, ...] = declare(
        kinds.NAMES,
        (),
        "Modules that each process of the spooler imports at its start; a name with a slash or ending in "
        "`.py` is the path of a file.",
    )
    spooler_max_attempts: int | None = declare(
        kinds.INTEGER,
        20,
        "A job that was started this many times without success is set aside; None or 0: no limit.",
        minimum=0,
        nullable=True,
        none=0,
    )
    spooler_backoff: float = declare(
        kinds.DURATION,
        1.0,
        "Pause before the second attempt of a job; it doubles before each further attempt.",
        minimum=0,
    )
    spooler_backoff_max: float = declare(
        kinds.DURATION, 600.0, "Longest pause between two attempts of a job.", minimum=0
    )
    spooler_allow_pickle: bool = declare(
        kinds.BOOLEAN,
        False,
        "Unpickle the arguments of jobs written by uWSGI's decorators; anyone who can write to the "
        "directory can then run any code.",
    )
    spooler_bridge: str | None = declare(
        kinds.FUNCTION,
        None,
        "`module:function` that gets each job and returns a task signature, which is sent instead of "
        "running the job in the spooler.",
    )
    spooler_results: bool = declare(
        kinds.BOOLEAN,
        False,
        "Store the return values of jobs, under the names of their files; jobs are then run one by one, "
        "which is slower.",
    )
    spooler_socket: tuple[str, ...] = declare(
        kinds.SPOOL_ADDRESSES,
        (),
        "Where packets with jobs are received: `host:port`, the path of a UNIX socket, or `@name` for an "
        "abstract one.",
    )
    spooler_socket_key: tuple[str, ...] | None = declare(
        kinds.SECRETS,
        None,
        "Key for signatures of packets from other machines; a list for rotation: the first signs, all "
        "verify.",
    )
    spooler_socket_allow: tuple[str, ...] = declare(
        kinds.NETWORKS,
        (),
        "Addresses and networks (`10.1.2.0/24`) from which packets are accepted, besides this machine.",
    )
    spooler_socket_timeout: float = declare(
        kinds.DURATION, 4.0, "How long a peer may take to send a packet.", minimum=0.01, maximum=3600
    )
    spooler_buffer_size: int = declare(
        kinds.BYTES,
        65_535,
        "The longest packet accepted from a socket, without its body.",
        minimum=4,
        maximum=65_535,
    )
    spooler_body_max: int = declare(
        kinds.BYTES,
        0,
        "The longest body accepted from a socket; 0: none, as with uWSGI.",
        minimum=0,
        maximum=1_000_000_000,
    )
