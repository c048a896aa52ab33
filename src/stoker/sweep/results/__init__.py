"""Results of a sweep: comparison, parameter importance and the HTML report."""
