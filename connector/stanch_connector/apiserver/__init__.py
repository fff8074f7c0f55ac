"""Inside the API-server process: the kit's HTTP routes."""
