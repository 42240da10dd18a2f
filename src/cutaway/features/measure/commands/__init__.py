"""The commands that measure: bench, verify, ab, imatrix, doctor."""
