"""The bed: a real single-node Kubernetes for tests, in namespaces of its own; see docs/bed.md."""
