"""OpenAI's files and batches: requests in a file, answered one after another, kept on disk."""
