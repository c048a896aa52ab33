"""The verb `system`: the system daemon of a machine, which all users share."""
