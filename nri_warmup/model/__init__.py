"""The nouns that cross borders between rooms: frozen, slotted, keyword-only values.

No dicts, no protobuf objects, no open files.

lifecycle (what a runtime told us) -> request (what the workload's author asked) + profile (what the operator allows)
+ node (what the kernel has) -> plan (the decision as data) -> warmset (what was read) -> outcome (what came of it).
"""
