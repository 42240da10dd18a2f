"""Features: folders that the core does without; ``cutaway.registry`` says what each adds."""
