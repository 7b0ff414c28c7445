"""The Crosstrain API for Python: protobuf messages and gRPC stubs, one tree for every supported runtime."""
