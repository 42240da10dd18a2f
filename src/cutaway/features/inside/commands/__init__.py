"""The commands that look into a step: trace inside and ablate; near."""
