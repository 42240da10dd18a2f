"""From a model's file to logits: loading, the graph of ops, the backends that compute them."""
