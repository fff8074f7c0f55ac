"""Prometheus rules and a Grafana dashboard, made from the tables that the operator itself works by. Pure.

`python -m tests.generated` (make fmt) writes what this makes into charts/stanch/files.
"""
