"""The commands of the tools that stoker grew from, as thin adapters over the engine."""
