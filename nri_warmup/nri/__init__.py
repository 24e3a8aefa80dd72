"""NRI: a stub for plugins in Python (``stub``) and the daemon's client on top of it (``client``).

The stub speaks the protocol's messages (``messages``) and is of use to any plugin; only ``client`` and ``translate``
know our model.
"""
