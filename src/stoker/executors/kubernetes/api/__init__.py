"""The Kubernetes API, used through a helper process."""
