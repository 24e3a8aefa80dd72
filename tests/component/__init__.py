"""The whole plugin against the other side of its socket."""
