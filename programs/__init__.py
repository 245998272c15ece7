"""Programs to learn on: each folder has a task with its data, its metric and its program."""
