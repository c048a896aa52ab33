"""The daemon: control loop, nodes, training, sweeps, request handlers and the HTTP API."""
