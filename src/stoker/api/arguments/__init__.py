"""Arguments of callers as fields of requests: jobs, commands, options, the environment."""
