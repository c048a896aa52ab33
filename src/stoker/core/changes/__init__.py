"""What each fact does to the state, by theme. `fold.apply` picks the right one."""
