"""The plugin on real container runtimes, driven through CRI in kubelet's place."""
