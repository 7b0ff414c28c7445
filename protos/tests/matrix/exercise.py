"""Runs in one combination of Python and protobuf and prints one line of JSON. Python 3.7 syntax.

exercise.py self         checks bytes, starts a server, calls it, prints a report
exercise.py serve        starts a server, prints its port, ends when standard input closes
exercise.py call PORT    calls a server that another combination runs
"""

import hashlib
import json
import sys

import google.protobuf
import grpc
from calls import call_everything, start_server
from google.protobuf.internal import api_implementation
from samples import MAX_VARIANTS, message_classes, sample, unset_fields
from wire import cases, negative_zero


def check_wire():
    """Compares the hand-written bytes both ways; returns the names of the cases."""
    names = []
    for name, message, expected in cases():
        found = message.SerializeToString(deterministic=True)
        assert found == expected, f"{name}: {found!r} instead of {expected!r}"
        assert type(message).FromString(expected) == message, name
        names.append(name)
    return names


def digests():
    """SHA-256 of the bytes of every sample of every message, and the fields no sample sets."""
    found, missing = {}, []
    for name, message_class in sorted(message_classes().items()):
        messages = [sample(message_class, variant) for variant in range(MAX_VARIANTS)]
        missing.extend(unset_fields(name, messages))
        for variant, message in enumerate(messages):
            data = message.SerializeToString(deterministic=True)
            assert message_class.FromString(data) == message, name
            found[f"{name} {variant}"] = hashlib.sha256(data).hexdigest()
    return found, missing


def self_test():
    found, missing = digests()
    server, port = start_server()
    try:
        called = call_everything(port)
    finally:
        server.stop(None)
    return {
        "python": "{}.{}".format(*sys.version_info),
        "protobuf": google.protobuf.__version__,
        "grpc": grpc.__version__,
        "implementation": api_implementation.Type(),
        "wire": check_wire(),
        "negative_zero": negative_zero(),
        "digests": found,
        "missing": missing,
        "called": called,
    }


def main(arguments):
    if arguments == ["self"]:
        print(json.dumps(self_test()))
    elif arguments == ["serve"]:
        server, port = start_server()
        print(port)
        sys.stdout.flush()
        sys.stdin.read()
        server.stop(None)
    elif len(arguments) == 2 and arguments[0] == "call":
        print(json.dumps({"called": call_everything(int(arguments[1]))}))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
