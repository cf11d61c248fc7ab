"""Sends a file of a request (`make.py`) with OpenTelemetry's own classes over gRPC, its time moved to now.

Usage: otlp.py ADDRESS FILE; prints the answer or the refusal
"""

import sys
import time

import grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2_grpc as calls

request = service.ExportProfilesServiceRequest()
with open(sys.argv[2], "rb") as file:
    request.ParseFromString(file.read())
for resource in request.resource_profiles:
    for scope in resource.scope_profiles:
        for profile in scope.profiles:
            if hasattr(profile, "time_unix_nano"):
                profile.time_unix_nano = time.time_ns() - 10_000_000_000
channel = grpc.insecure_channel(sys.argv[1])
try:
    answer = calls.ProfilesServiceStub(channel).Export(request, timeout=10)
    print(str(answer).strip() or "stored")
except grpc.RpcError as error:
    print(error.code().name, error.details())
