"""A process of uWSGI's own that sends its spooler BENCHMARK_COUNT jobs, once BENCHMARK_GO is there."""

import os
import time

import uwsgi

while not os.path.exists(os.environ["BENCHMARK_GO"]):
    time.sleep(0.01)
for _ in range(int(os.environ["BENCHMARK_COUNT"])):
    uwsgi.spool({b"sent": b"%d" % time.monotonic_ns()})
    time.sleep(float(os.environ["BENCHMARK_PAUSE"]))
while True:
    time.sleep(3600)
