"""What a job knows about its process, and how it measures, saves and stops."""
