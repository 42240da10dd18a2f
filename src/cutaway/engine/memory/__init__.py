"""What is kept of texts: KV blocks, their windows and states, and which of them a sequence has."""
