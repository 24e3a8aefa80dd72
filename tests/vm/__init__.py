"""Run inside the booted guest (``make test-vm``, ``make test-node``): cgroup v2, NUMA nodes, a kubelet."""
