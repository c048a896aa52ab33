"""Prints the digest of a model's weights: two runs that print the same are equal to the bit."""

import hashlib


def tell(arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    print("weights", found.hexdigest(), flush=True)
