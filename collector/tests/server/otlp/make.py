"""Makes the requests that tests send, with the classes of OpenTelemetry's own package.

Usage: for each release its file, with `pip install opentelemetry-proto==RELEASE`:
  1.39.1 (layout 1.7): make.py 1.7.pb    1.42.1 (1.9): make.py 1.9.pb    1.45.2 (1.10): make.py 1.10.pb
With the last also: make.py strindex.pb, whose attributes refer to the table of strings.
"""

import sys

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.profiles.v1development import profiles_pb2 as p

# A minute before the time of the tests. Unit: nanoseconds.
START = 1_700_000_000_000_000_000 - 60_000_000_000

out = sys.argv[1]
request = service.ExportProfilesServiceRequest()
tables = request.dictionary
strings = [""]


def string(text):
    if text not in strings:
        strings.append(text)
    return strings.index(text)


def function(name, file=""):
    tables.function_table.add(name_strindex=string(name), filename_strindex=string(file))
    return len(tables.function_table) - 1


def attribute(key, value):
    kind = {"key_strindex": string(key)} if "1.7" not in out else {"key": key}
    new = tables.attribute_table.add(**kind)
    new.value.string_value = value
    return len(tables.attribute_table) - 1


def location(kind, mapping, address, *lines):
    new = tables.location_table.add(address=address)
    if mapping:
        new.mapping_index = mapping
    new.attribute_indices.append(attribute("profile.frame.type", kind))
    for name, file, number in lines:
        add = new.lines.add if hasattr(new, "lines") else new.line.add
        add(function_index=function(name, file), line=number)
    return len(tables.location_table) - 1


# The first of each table is what is not set.
tables.mapping_table.add()
tables.location_table.add()
tables.function_table.add()
tables.link_table.add()
tables.attribute_table.add()
tables.mapping_table.add(filename_strindex=string("/usr/lib/libshop.so"))
if hasattr(tables, "stack_table"):
    tables.stack_table.add()

KERNEL = location("kernel", 0, 0xFFFF, ("vfs_read", "", 0))
NATIVE = location("native", 1, 0x1234)
# What was inlined first.
INLINED = location("native", 1, 0x2000, ("inner", "shop.c", 7), ("outer", "shop.c", 9))
PYTHON = location("cpython", 0, 0, ("handle", "app.py", 12))
STACK = [KERNEL, NATIVE, INLINED, PYTHON]
THREAD = attribute("thread.name", "worker")
NUMBER = attribute("thread.id", "4711")


def value_type(of, name, unit):
    of.type_strindex = string(name)
    of.unit_strindex = string(unit)


def profile(scope, of, period_type=None, period=0):
    new = scope.profiles.add()
    if "1.7" in out:
        value_type(new.sample_type.add(), *of)
        new.time_nanos, new.duration_nanos = START, 10_000_000_000
        new.location_indices.extend(STACK)
    else:
        value_type(new.sample_type, *of)
        new.time_unix_nano, new.duration_nano = START, 10_000_000_000
    if period_type:
        value_type(new.period_type, *period_type)
    new.period = period
    return new


def sample(of, values, times, locations=STACK):
    stamps = [START + number for number in range(times)]
    if "1.7" in out:
        of.sample.add(
            locations_start_index=0, locations_length=len(locations), value=values, timestamps_unix_nano=stamps
        )
        return
    tables.stack_table.add(location_indices=locations)
    of.samples.add(
        stack_index=len(tables.stack_table) - 1,
        values=values,
        timestamps_unix_nano=stamps,
        attribute_indices=[THREAD, NUMBER],
    )


resource = request.resource_profiles.add()
for key, value in [
    ("service.name", "shop"),
    ("container.id", "c0ffee"),
    ("host.name", "eu-1"),
    ("process.executable.name", "python3"),
]:
    new = resource.resource.attributes.add()
    if "strindex" in out:
        new.key_strindex = string(key)
        new.value.string_value_strindex = string(value)
    else:
        new.key = key
        new.value.string_value = value
pid = resource.resource.attributes.add(key="process.pid")
pid.value.int_value = 4711
scope = resource.scope_profiles.add()
scope.scope.name = "profiler"
# As profilers of whole hosts send them: CPU time by timestamps, waiting by values beside them.
cpu = profile(scope, ("samples", "count"), ("cpu", "nanoseconds"), 10_000_000)
sample(cpu, [], 3)
sample(cpu, [], 1, [NATIVE, PYTHON])
waits = profile(scope, ("off_cpu", "nanoseconds"))
sample(waits, [500, 700], 2)
# As converters of heaps send them.
heap = profile(scope, ("inuse_space", "bytes"), ("space", "bytes"), 512 << 10)
sample(heap, [4096], 0)
tables.string_table.extend(strings)
with open(out, "wb") as file:
    file.write(request.SerializeToString())
