"""Function calls as jobs: the executor, its futures, and the files of calls and results."""
