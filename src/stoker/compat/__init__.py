"""Compatibility commands: the commands of the five original tools, run by stoker."""
