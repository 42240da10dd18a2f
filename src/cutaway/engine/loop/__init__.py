"""The loop: the engine, its scheduler, its thread, and what is read between two of its steps."""
