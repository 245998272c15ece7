"""What accompanies a run: accounting and events."""
