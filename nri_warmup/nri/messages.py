"""The messages a plugin author handles, by their protocol names. Importing this loads protobuf (25 ms, 8 MB)."""

from nri_warmup.nri._pb.nri_pb2 import *  # noqa: F403
