"""Finding the fastest engine of a task model that loses no quality, and putting it to work."""
