"""Scripts that drive a scheduler, each run by the Python of its engine. See `host`."""
