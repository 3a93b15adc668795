"""The cost of checking one message against its bounds: a worker's report with three metrics, in microseconds.

Each stream checks every message that arrives, on the event loop.
"""

import statistics
import timeit

from google.protobuf.duration_pb2 import Duration

from headrace import bounds
from headrace.v1 import event_pb2, worker_pb2

CALLS = 1000
REPEATS = 200


def main() -> None:
    message = worker_pb2.SessionRequest(
        report=worker_pb2.Report(
            sequence=9,
            lease=event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0", attempt=1),
            step=3,
            metrics={"loss": 0.1, "accuracy": 0.9, "lr": 1e-3},
            train_time=Duration(seconds=4),
        )
    )
    assert not bounds.violations(message)
    took_s = timeit.repeat(lambda: bounds.violations(message), number=CALLS, repeat=REPEATS)
    median, p95 = statistics.median(took_s), statistics.quantiles(took_s, n=20)[-1]
    print(f"a check: median {1e6 * median / CALLS:.1f} µs, p95 {1e6 * p95 / CALLS:.1f} µs")


if __name__ == "__main__":
    main()
