"""Under a real kubelet with static pods, on containerd 2.4 (``make test-node``)."""
