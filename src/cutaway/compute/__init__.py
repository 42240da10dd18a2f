"""Everything between a model's file and its logits: loading, the graph of ops, the backends."""
