"""A model server as small as one can be: maps its model at its start, touches all of it at random on a request.

Runs as a plain file (``python -I -S demo_server.py MODEL SOCKET``) on any Python 3, so that a container can run it.
One request is one connection to the unix socket; the answer is one line: milliseconds and page faults of this request.
"""

import mmap
import random
import resource
import socket
import sys
import time

BLOCK = 64 << 10
PAGE = 4096


def touch(model: mmap.mmap, order: "list[int]") -> int:
    """Read one byte of every page, the blocks of 64 KiB in random order."""
    total = 0
    for block in order:
        total += sum(model[block * BLOCK : (block + 1) * BLOCK : PAGE])
    return total


def main() -> None:
    path, address = sys.argv[1:3]
    with open(path, "rb") as stream:
        model = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    order = list(range((len(model) + BLOCK - 1) // BLOCK))
    random.Random(1).shuffle(order)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen(1)
    with open(address + ".ready", "wb"):
        pass
    while True:
        client, _ = server.accept()
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        checksum = touch(model, order)
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        major, minor = after.ru_majflt - before.ru_majflt, after.ru_minflt - before.ru_minflt
        client.sendall(b"%.3f %d %d %d\n" % (took * 1000, major, minor, checksum))
        client.close()


if __name__ == "__main__":
    main()
