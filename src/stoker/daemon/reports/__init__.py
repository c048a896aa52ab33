"""Report files of training attempts: format, directories, control files, change notification."""
