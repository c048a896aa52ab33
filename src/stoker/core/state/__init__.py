"""The state of the scheduler and the rules that keep its indexes current."""
