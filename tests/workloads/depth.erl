%% Busy for ever, a hundred calls below its first function.
-module(depth).
-export([main/0]).

main() -> down(100).

down(0) -> turn(1);
down(N) ->
    X = down(N - 1),
    X + N.

turn(X) -> turn((X * 1664525 + 1013904223) band 16#ffffffff).
