"""Metrics that services have in common, and what watches them: a Grafana dashboard and Prometheus alert rules.

`registry` holds the metrics of this process; `calls` measures the calls that a gRPC server answers.
`dashboard.json` and `alerts.yaml` are for the operator's own Grafana and Prometheus. A test compares both with a
real /metrics.

No label holds the name of a study, a trial, a worker or a person: the number of series does not grow with use.
"""
