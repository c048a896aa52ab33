"""The helper process that extracts metrics."""
