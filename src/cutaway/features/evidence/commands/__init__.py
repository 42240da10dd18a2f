"""The commands that check and sign: oracle, audit, conform, receipt."""
