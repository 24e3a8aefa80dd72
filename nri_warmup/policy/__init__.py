"""Decides, never acts: values in, values out, and every choice with its reason.

decide (composes the others into a WarmupPlan), select (which selector matches), warmset (which patterns, what a
container can see), gate (whether the entrypoint may be held), memory (how many bytes may be read), admission (who may
read now), interest (which events need not even be decoded), render (a plan as JSON and as text).
"""
