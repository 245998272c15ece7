"""Ways to watch a run. Each is a listener for the run's events."""
