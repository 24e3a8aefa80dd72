"""The test lab: real container runtimes beside the host's own, without touching them.

store       what setup.sh put into the cache, and where
image       OCI image archives made from files, no registry
cri         a client for the part of the Kubernetes CRI that the tests need
containerd  one containerd with root, state, sockets and cgroups of its own; several run side by side
crio        the same for CRI-O
plugin      the program under test as a real process
pages       an independent witness for the page cache: mincore, kpagecgroup, eviction
leftovers   what a test left behind: processes, cgroups, mounts

Nothing here imports pytest: ``nri-warmup demo`` uses it too when it runs in a checkout.
"""
