"""Every method of every service that Headrace serves, from the descriptors."""

import importlib
import pkgutil
from collections.abc import Iterator

from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import headrace.v1


def methods() -> Iterator[MethodDescriptor]:
    """Every method of every service of the contract, and of those that servers add."""
    ours = [
        importlib.import_module(f"headrace.v1.{module.name}")
        for module in pkgutil.iter_modules(headrace.v1.__path__)
        if module.name.endswith("_pb2")
    ]
    for module in (*ours, health_pb2, reflection_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def path(method: MethodDescriptor) -> str:
    """The path of a method in a call."""
    return f"/{method.containing_service.full_name}/{method.name}"


METHODS = {path(method): method for method in methods()}
