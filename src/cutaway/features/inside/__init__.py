"""Inside: attention, logit attribution, the lens and ablation of one step, computed again."""
