"""The driver with a real clock and real processes: loop, API, who may do what."""
