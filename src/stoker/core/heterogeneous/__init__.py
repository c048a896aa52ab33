"""Global assignment for clusters with several GPU models or shared GPUs."""
