"""Our NRI plugin against a minimal one in Go."""
