"""What is executed: argv, environment, containers."""
