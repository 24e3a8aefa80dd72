"""The runtime's other side: Go programs on its own NRI library, and what builds and drives them."""
