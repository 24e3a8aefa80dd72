"""Thin, typed access to the kernel: one module a subsystem, named after the interface file or system call, no opinions.

Everything that opens a path takes a ``Root`` (or a path already resolved through one), so that a test can hand in a
tree in a folder. No bare OSError leaves this room: errors are ``KernelError(path, errno)``. The modules that the
worker imports (root, syscalls, pagecache, pagemap) use no dataclasses, no re and no typing at run time: they cost the
zygote memory and start time.
"""
