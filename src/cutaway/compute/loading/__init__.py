"""Open a model's file or folder, and make the parts that compute and that read it."""
