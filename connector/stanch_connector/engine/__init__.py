"""Inside the EngineCore process: who holds KV, since when."""
