"""One small module per peer, imported in that peer's environment by the producer and by the peer's own worker.

An adapter offers these functions; the producer looks them up by name:

- `prepare()`: make what the peer needs (tables, a clean queue). Called once, before the worker starts.
- `send(task, *args)`: enqueue one call, the way the peer's manual shows it.
- `send_many(task, calls)`: enqueue a list of argument tuples with the peer's bulk call. Only where there is one.
- `send_at(due, task, *args)`: enqueue one call to run at `due`, an instant in epoch seconds.
- `finish()`: remove what `prepare` made outside the cell's directory. Only where there is something.

`task` is a name of `benchmarks.bodies`: noop, stored, burn, pause, due. The cell's directory comes in the
environment variable BENCHMARK_DIRECTORY.
"""
