"""Request handlers, one function per verb: `(State, Instant) -> CommandResult`, without I/O."""
