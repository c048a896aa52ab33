"""The definition of a sweep: parameters, early stopping and the command of a trial."""
