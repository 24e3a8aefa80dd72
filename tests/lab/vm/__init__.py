"""A booted guest, for what this machine's kernel may not have: cgroup v2, several NUMA nodes, a kubelet.

``python -m tests.lab.vm test|node|ci|shell`` builds a Debian image once, boots it under QEMU's software emulation (no
KVM is needed) and runs ``tests/vm`` inside it as root. Read ``guest.py`` for one boot, ``image.py`` for what is in it,
``inside/boot.sh`` for what happens there.
"""
