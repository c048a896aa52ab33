"""What squeue, sacct and sinfo print: columns, fields, formats, and the options for them."""
