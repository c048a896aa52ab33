"""The HTTP API: the route table (`app`), its handlers, and the bridge to the daemon's thread."""
