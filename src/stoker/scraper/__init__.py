"""The helper process that extracts metrics from logs and files."""
