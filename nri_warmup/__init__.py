"""Kernel-level warm-up for containers: an NRI plugin, an OCI hook and a command-line tool."""

__version__ = "0.1.0"
