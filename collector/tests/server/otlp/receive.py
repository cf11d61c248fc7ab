"""Receives OTLP profiles over gRPC with OpenTelemetry's own classes, and checks each request by the rules of the
conformance checker of OpenTelemetry's profiling group.

Usage: receive.py; prints the port, then a line for each request: profiles, samples, and what breaks a rule
"""

import concurrent.futures
import sys

import grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2_grpc as calls


def problems(request):
    """What breaks a rule, in sentences."""
    tables, found = request.dictionary, []

    def that(holds, sentence):
        if not holds:
            found.append(sentence)

    used = {name: {0} for name in ("mapping", "location", "function", "link", "string", "attribute", "stack")}

    def refer(name, index):
        that(0 <= index < len(getattr(tables, name + "_table")), f"{name} {index} is in no table")
        used[name].add(index)

    def refer_attributes(indices):
        keys = [tables.attribute_table[index].key_strindex for index in indices]
        that(len(set(keys)) == len(keys), "an attribute is there twice")
        for index in indices:
            refer("attribute", index)

    that(request.resource_profiles, "no resource")
    ids = set()
    for resource in request.resource_profiles:
        keys = [pair.key for pair in resource.resource.attributes]
        that(len(set(keys)) == len(keys) and "service.name" in keys, f"attributes of a resource: {keys}")
        that(resource.scope_profiles, "a resource without a scope")
        for scope in resource.scope_profiles:
            that(scope.profiles, "a scope without a profile")
            for profile in scope.profiles:
                that(len(profile.profile_id) == 16 and profile.profile_id not in ids, "an id that is none")
                ids.add(profile.profile_id)
                that(profile.time_unix_nano > 0 and profile.duration_nano > 0, "a profile without a time")
                for of in (profile.sample_type, profile.period_type):
                    refer("string", of.type_strindex)
                    refer("string", of.unit_strindex)
                refer_attributes(profile.attribute_indices)
                for sample in profile.samples:
                    refer("stack", sample.stack_index)
                    refer("link", sample.link_index)
                    refer_attributes(sample.attribute_indices)
                    that(len(sample.values) == 1 and not sample.timestamps_unix_nano, "a sample of another shape")
    for stack in tables.stack_table:
        for index in stack.location_indices:
            refer("location", index)
    for location in tables.location_table:
        refer("mapping", location.mapping_index)
        refer_attributes(location.attribute_indices)
        for line in location.lines:
            refer("function", line.function_index)
            that(line.line >= 0, "a line below 0")
    for mapping in tables.mapping_table:
        refer("string", mapping.filename_strindex)
        refer_attributes(mapping.attribute_indices)
    for function in tables.function_table:
        for index in (function.name_strindex, function.system_name_strindex, function.filename_strindex):
            refer("string", index)
    for attribute in tables.attribute_table:
        refer("string", attribute.key_strindex)
        refer("string", attribute.unit_strindex)
    for name, indices in used.items():
        table = list(getattr(tables, name + "_table"))
        first = "" if name == "string" else type(table[0])() if table else None
        that(table and table[0] == first, f"the first {name} is something")
        unique = {entry if name == "string" else entry.SerializeToString(deterministic=True) for entry in table}
        that(len(unique) == len(table), f"a {name} is there twice")
        that(len(indices) == len(table), f"a {name} is used by nothing")
    return found


class Receiver(calls.ProfilesServiceServicer):
    def Export(self, request, context):
        profiles = [
            profile
            for resource in request.resource_profiles
            for scope in resource.scope_profiles
            for profile in scope.profiles
        ]
        samples = sum(len(profile.samples) for profile in profiles)
        found = problems(request)
        print(f"profiles={len(profiles)} samples={samples} problems={found}", flush=True)
        return service.ExportProfilesServiceResponse()


server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), compression=grpc.Compression.Gzip)
calls.add_ProfilesServiceServicer_to_server(Receiver(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"port={port}", flush=True)
sys.stdin.read()
