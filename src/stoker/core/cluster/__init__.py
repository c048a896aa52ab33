"""Nodes, devices, the ledger of what is allocated, overlays of it, and the free-capacity index."""
