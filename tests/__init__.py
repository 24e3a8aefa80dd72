"""Tests by level: unit, property, golden, component, kernel, e2e, bench; the runtimes they need are in lab."""
