"""What every room may use: checks, files, progress, the system, and the compiled core."""
