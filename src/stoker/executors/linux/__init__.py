"""Operating-system primitives: processes, locks, cgroups, inotify, threads."""
