"""What exactly is executed: argv, environment, files."""
