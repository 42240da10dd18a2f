"""HTTP itself: access, limits of size and time, errors, the process, the log, the metrics."""
