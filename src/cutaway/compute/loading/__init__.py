"""From a model's file or folder on disk to the parts that compute and read it."""
