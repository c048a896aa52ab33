"""Requests and replies of the HTTP API as msgspec Structs: the only definition of each.

The daemon builds and encodes them, `stoker.api` and `stoker.simulate.whatif` decode them, and the
OpenAPI document publishes them. Commands use plain dicts, because importing msgspec takes longer
than a command may.
"""
