"""`make golden`: run fixed workloads and compare every decision with the recorded hashes."""
