"""Token ids back to text: incremental detokenization and stop strings (no torch)."""
