"""Fills every field of every message of the API with values that do not depend on the runtime.

Runs on every supported combination of Python and protobuf (3.7 syntax), so it reads descriptors
only by what exists in all of them. Variant ``v`` of a message sets member ``v`` (modulo their
number) of every oneof, and its optional scalars only if ``v`` is even; so a message with n oneof
members needs n variants, and MAX_VARIANTS is enough for all.
"""

import functools

from crosstrain_protos.v1 import (
    artifact_pb2,
    coordinator_pb2,
    data_pb2,
    errors_pb2,
    model_pb2,
    run_pb2,
    service_pb2,
    training_pb2,
)
from google.protobuf.descriptor import FieldDescriptor

MODULES = (
    artifact_pb2,
    coordinator_pb2,
    data_pb2,
    errors_pb2,
    model_pb2,
    run_pb2,
    service_pb2,
    training_pb2,
)

# The largest oneof (RunEvent.event) has 14 members.
MAX_VARIANTS = 14

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: 32,
    FieldDescriptor.CPPTYPE_INT64: 64,
    FieldDescriptor.CPPTYPE_UINT32: 32,
    FieldDescriptor.CPPTYPE_UINT64: 64,
}


@functools.lru_cache(maxsize=None)  # noqa: UP033 (Python 3.7 has no functools.cache)
def message_classes():
    """Full name -> class of every message of the API."""
    found = {}
    for module in MODULES:
        for name in module.DESCRIPTOR.message_types_by_name:
            found[module.DESCRIPTOR.message_types_by_name[name].full_name] = getattr(module, name)
    return found


@functools.lru_cache(maxsize=None)  # noqa: UP033 (Python 3.7 has no functools.cache)
def sample(message_class, variant):
    """A message of the class with all fields set as the module's docstring says; do not change it."""
    message = message_class()
    _fill(message, variant)
    return message


def unset_fields(name, messages):
    """Fields of one message type that none of ``messages`` (of that type) sets."""
    descriptor = messages[0].DESCRIPTOR
    seen = set()
    for message in messages:
        seen.update(field.name for field, _value in message.ListFields())
    return sorted(f"{name}.{field.name}" for field in descriptor.fields if field.name not in seen)


def _fill(message, variant):
    for field in message.DESCRIPTOR.fields:
        if not _is_chosen(field, variant):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            # Keys neither sorted nor in ASCII order alone, so that serialising has something to sort.
            for key in ("zeta", "alpha", "A", "\u00e9"):
                value[key] = f"{field.name} {key} {variant}"
        elif _is_repeated(field):
            for index in range(3):
                if field.message_type is not None:
                    _fill(value.add(), variant + index)
                else:
                    value.append(_scalar(field, variant + index))
        elif field.message_type is not None:
            value.SetInParent()
            _fill(value, variant)
        else:
            setattr(message, field.name, _scalar(field, variant))


def _is_chosen(field, variant):
    oneof = field.containing_oneof
    if oneof is None:
        return True
    if len(oneof.fields) == 1 and oneof.name.startswith("_"):
        # "optional": presence is a oneof of one member that protoc adds.
        return variant % 2 == 0
    return oneof.fields[variant % len(oneof.fields)].name == field.name


def _is_repeated(field):
    # FieldDescriptor.label went away in newer releases, is_repeated is missing in older ones.
    repeated = getattr(field, "is_repeated", None)
    return field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated


def _is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _scalar(field, variant):
    kind = field.cpp_type
    if kind in _INTEGERS:
        # Both ends of the range, then small values of either sign.
        top = (1 << (_INTEGERS[kind] - 1)) - 1
        return (top, -top - 1, field.number, -1 - variant)[variant % 4]
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        # No -0.0: see negative_zero in wire.py.
        return (0.1, 2.5, 5e-324, 1.7976931348623157e308, float("inf"), -1.0 / 3.0)[variant % 6]
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        numbers = sorted(value.number for value in field.enum_type.values)
        return numbers[1 + variant % (len(numbers) - 1)]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes(bytearray((0, 255, variant, 128)))
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"{field.name} \u00e4\u4e2d\U0001f600 {variant}"
    raise AssertionError(f"no sample value for the type of {field.full_name}")
