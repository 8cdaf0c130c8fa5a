"""One small module per peer, and one for all brokers of qworker and of Celery, imported in that peer's
environment by the producer and by the peer's own worker.

An adapter offers these functions; the producer looks them up by name:

- `prepare()`: make what the peer needs (tables, a clean queue). Called once, before the worker starts.
- `send(task, *args)`: enqueue one call, the way the peer's manual shows it.
- `send_many(task, calls)`: enqueue a list of argument tuples with the peer's bulk call. Only where there is
  one.
- `send_many_to(queue, task, calls)`: the same, to one of BENCHMARK_QUEUES queues by its number. Only where
  the worker can be given so many by that variable.
- `send_at(due, task, *args)`: enqueue one call to run at `due`, an instant in epoch seconds.
- `workflow(kind, base, count)`: a chain, chord or group that is not called yet, and the value that it is to
  have; see `workflows`. Only where there are such.
- `finish()`: remove what `prepare` made outside the cell's directory. Only where there is something.

`task` is a name of `benchmarks.bodies`: noop, stored, sized, burn, pause, due. The environment names the
cell's directory (BENCHMARK_DIRECTORY), the workload (BENCHMARK_WORKLOAD) and, for adapters of several, the
broker (BENCHMARK_BROKER).
"""
