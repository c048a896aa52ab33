"""Clients of the daemon's helper processes: forecasts, samplers, scraped metrics."""
