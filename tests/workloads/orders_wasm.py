"""Busy in WebAssembly that wasmtime compiled, until it is killed or its life is over."""

import sys
import time

import wasmtime

LIFE_S = 600

MODULE = """
(module
  (func $settle (export "settle") (param $turns i32) (result i32)
    (local $x i32)
    (loop $again
      (local.set $x (i32.add (i32.mul (local.get $x) (i32.const 1664525)) (i32.const 1013904223)))
      (local.set $turns (i32.sub (local.get $turns) (i32.const 1)))
      (br_if $again (local.get $turns)))
    (local.get $x)))
"""

config = wasmtime.Config()
config.profiler = sys.argv[1]
engine = wasmtime.Engine(config)
store = wasmtime.Store(engine)
instance = wasmtime.Instance(store, wasmtime.Module(engine, MODULE), [])
settle = instance.exports(store)["settle"]
end = time.monotonic() + LIFE_S
while time.monotonic() < end:
    settle(store, 3_000_000)
