"""`python -m stanch_connector.install TARGET`: put the kit into a volume that the engine's container
shares."""
